"""The shares of several models in one server's cores, threads and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.assembly.sharing import Tenancy, check_weights, divided, shared, shares
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import architecture, load
from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.packed_index import ALIGNMENT, weights_size
from corepipe.neuron.host.weights import packed_weights
from tests.servers import TINY

TINY_MODEL = architecture(str(TINY))


def tenancy(name: str, **asked: object) -> Tenancy:
    config = EngineConfig.model_validate({"model": str(TINY), "instance": "inf2.24xlarge", **asked})
    return Tenancy(name, config, TINY_MODEL)


def cores_of(config: EngineConfig) -> list[int]:
    """Returns the NeuronCores that the engine would take, as /v1/placement reports them."""
    numbers: list[int] = plan_device(config, TINY_MODEL).describe()["neuroncore_ids"]  # type: ignore[assignment]
    return numbers


def test_no_two_models_have_a_core_in_common() -> None:
    parts = divided([tenancy("a", tensor=2, data=2), tenancy("b", mode="latency"), tenancy("c", pipeline=2)])
    taken = [cores_of(part) for part in parts]
    assert taken[0] == [0, 1, 2, 3]
    assert taken[2] == [taken[1][-1] + 1, taken[1][-1] + 2]
    every = [core for part in taken for core in part]
    assert every == [*range(len(every))]


def test_one_that_would_take_all_leaves_what_the_others_need() -> None:
    first, second = divided([tenancy("a", mode="throughput"), tenancy("b", tensor=4)])
    assert cores_of(first) == [*range(8)]
    assert cores_of(second) == [8, 9, 10, 11]


def test_a_part_is_placed_as_an_instance_of_its_own() -> None:
    """A model on its part is placed as on an instance with as many cores."""
    first, _ = divided(
        [tenancy("a", mode="throughput", instance="inf2.8xlarge"), tenancy("b", instance="inf2.8xlarge")]
    )
    alone = plan_device(
        tenancy("a", data=1, pipeline=1, tensor=1, instance="inf2.8xlarge").config, TINY_MODEL
    )
    part = plan_device(first, TINY_MODEL)
    assert (part.placement, part.memory) == (alone.placement, alone.memory)


def test_too_few_cores_are_told_with_the_instance_that_has_them() -> None:
    asked = [tenancy(name, instance="inf2.xlarge") for name in ("a", "b", "c")]
    with pytest.raises(
        UserError, match=r"3 models need 3 NeuronCores \(a 1, b 1, c 1\), inf2.xlarge has 2; use"
    ) as caught:
        divided(asked)
    name = caught.value.message.rpartition(" ")[2]
    assert divided([tenancy(one.name, instance=name) for one in asked])
    assert instance(name).price_per_hour == min(
        one.price_per_hour
        for one in INSTANCES
        if one.cores >= 3 and one.price_per_hour and not one.hypothetical
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_model_too_large_for_its_part_is_told_with_the_instance_that_holds_both(
    order: tuple[int, int],
) -> None:
    config = EngineConfig(model="large", format="bf16", instance="inf2.xlarge")
    large = Tenancy("large", config, architecture("llama-3.1-8b"))
    both = [(tenancy("a", instance="inf2.xlarge"), large)[at] for at in order]
    with pytest.raises(
        UserError, match=r"large does not fit what the other models leave of inf2\.xlarge"
    ) as caught:
        divided(both)
    _, _, name = caught.value.message.rpartition("use --instance ")
    moved = [replace(one, config=one.config.model_copy(update={"instance": name})) for one in both]
    taken = [
        plan_device(part, one.timed).describe()["neuroncore_ids"]
        for part, one in zip(divided(moved), moved, strict=True)
    ]
    assert not {*taken[0]} & {*taken[1]}  # type: ignore[misc]
    assert not plan_fits(large.config)


def plan_fits(config: EngineConfig) -> bool:
    """Tells whether one core is enough."""
    try:
        plan_device(config.model_copy(update={"cores": 1}), architecture("llama-3.1-8b"))
    except UserError:
        return False
    return True


def test_what_no_instance_holds_is_told() -> None:
    with pytest.raises(UserError, match="no instance of the catalogue holds them so"):
        divided([tenancy("a", data=200), tenancy("b", data=200)])


def test_a_model_that_is_wrong_in_itself_is_named() -> None:
    with pytest.raises(UserError, match=r"^b: "):
        divided([tenancy("a"), tenancy("b", max_model_len=100_000)])


@pytest.mark.parametrize("asked", [{"first_core": 12}, {"first_core": 8, "cores": 5}, {"cores": 13}])
def test_cores_that_the_instance_has_not_are_refused(asked: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"inf2\.24xlarge has 12 NeuronCores, counted from 0"):
        plan_device(tenancy("a", **asked).config, TINY_MODEL)


def test_a_part_goes_to_the_end_where_nothing_else_is_said() -> None:
    found = plan_device(tenancy("a", first_core=9, mode="throughput").config, TINY_MODEL)
    assert found.describe()["neuroncore_ids"] == [9, 10, 11]


def test_memory_of_a_bank_is_shared_by_its_cores() -> None:
    """The four cores of inf1's chip have one bank: a part has the same share of it as of the cores."""
    machine = instance("inf1.xlarge")
    assert machine.with_part(1, 2).room(0) == machine.bank_bytes // 2
    assert sum(machine.with_part(*part).room(0) for part in ((0, 1), (1, 3))) == machine.bank_bytes
    assert machine.room(0) == machine.bank_bytes
    assert [machine.with_part(2, 2).bank_of(core) for core in (0, 1)] == [0, 0]
    larger = instance("inf2.24xlarge")
    assert [larger.with_part(3, 2).chip_of(core) for core in (0, 1)] == [1, 2]


@given(st.lists(st.none() | st.integers(1, 8), min_size=1, max_size=6), st.integers(1, 16))
def test_threads_are_shared_out(asked: list[int | None], whole: int) -> None:
    found = shares(asked, whole)
    free = [size for size, one in zip(found, asked, strict=True) if one is None]
    assert [size for size, one in zip(found, asked, strict=True) if one is not None] == [
        one for one in asked if one
    ]
    if free:
        left = whole - sum(one or 0 for one in asked)
        assert sum(free) == max(left, len(free))
        assert max(free) - min(free) <= 1
        assert free == sorted(free, reverse=True)


def test_host_memory_is_shared_out() -> None:
    first, second = shared([tenancy("a"), tenancy("b", kv_cache_bytes=5)], cpus=3, kv_bytes=1000)
    assert (first.kv_cache_bytes, second.kv_cache_bytes) == (500, 5)
    assert (first.threads, second.threads) == (2, 1)


def test_weights_that_the_host_cannot_hold_are_refused() -> None:
    check_weights({"a": 6, "b": 4}, 10)
    with pytest.raises(
        UserError, match=r"models take 11\.0 GB \(a 6\.0, b 5\.0\), and the host has 10\.0 GB"
    ):
        check_weights({"a": 6 * 10**9, "b": 5 * 10**9}, 10 * 10**9)


def test_weights_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    """Only the alignment differs, by a page a tensor at the most."""
    model = load(TINY)
    for name in ("fp32", "int8"):
        graph = model.graph(FORMATS[name])
        stored = packed_weights(graph, model.checkpoint, tmp_path / name, lambda *_: None)
        (file,) = (tmp_path / name).glob("*.packed")
        assert stored is not None
        assert 0 <= file.stat().st_size - weights_size(graph) <= ALIGNMENT * (2 + len([*graph.weights()]))
