from __future__ import annotations

from dataclasses import replace

import pytest

from corepipe.neuron.chips.catalog import INSTANCES, instance
from corepipe.neuron.chips.hardware import Support
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.formats import FORMATS
from corepipe.planning.planner.space import SearchSpace, placements

VLLM = PROFILES["vllm-neuron"]
SMALL = {"heads": 32, "layers": 32}


def space(*names: str, formats: tuple[str, ...] | None = None) -> SearchSpace:
    chosen = tuple(i for i in INSTANCES if not names or i.name in names)
    return SearchSpace(chosen, formats and tuple(FORMATS[f] for f in formats), (VLLM,))


@pytest.mark.parametrize("name", [i.name for i in INSTANCES])
def test_placements_are_what_the_stack_accepts_and_the_cores_hold(name: str) -> None:
    device = instance(name)
    found = list(placements(device, **SMALL))
    assert found
    assert len(set(found)) == len(found)
    for placement in found:
        assert placement.tensor in device.tensor_degrees
        assert placement.tensor <= SMALL["heads"]
        assert placement.cores <= device.cores


def test_only_inf1_has_pipelines() -> None:
    deep = {i.family for i in INSTANCES if any(p.pipeline > 1 for p in placements(i, **SMALL))}
    assert deep == {"inf1"}


def test_every_core_is_used_where_replicas_do_not_share_a_memory_bank() -> None:
    device = instance("trn1.32xlarge")
    assert {p.cores for p in placements(device, **SMALL)} == {device.cores}


def test_fewer_replicas_are_tried_where_they_share_a_memory_bank() -> None:
    data = {p.data for p in placements(instance("inf1.xlarge"), **SMALL) if p.pipeline == 1}
    assert data == {4, 2, 1}


def test_formats_are_those_of_the_chip_unless_asked_for() -> None:
    for shape in space().shapes(**SMALL):
        assert shape.device.support(shape.format) is Support.NATIVE
        assert shape.format.name != "fp32"
    asked = space("trn2.48xlarge", formats=("int8", "fp32"))
    assert {s.format.name for s in asked.shapes(**SMALL)} == {"int8", "fp32"}


def test_a_batch_of_more_tokens_than_a_request_has_changes_nothing() -> None:
    limits = list(space().limits(1024, 1000))
    assert {n.max_num_batched_tokens for n in limits} == {512, 2048}
    assert {n.max_model_len for n in limits} == {1024}
    assert len(set(limits)) == len(limits)
    assert all(n.max_num_batched_tokens >= n.max_num_seqs for n in limits)


def test_the_usual_space_has_over_a_thousand_configurations() -> None:
    usual = space()
    assert len(list(usual.shapes(**SMALL))) * len(list(usual.limits(4096, 4000))) > 1000


def test_a_core_of_trn2_may_be_logical_alone_or_with_another() -> None:
    shapes = list(space("trn2.3xlarge", "inf2.xlarge").shapes(**SMALL))
    assert {(s.instance, s.lnc, s.device.lnc) for s in shapes} == {
        ("trn2.3xlarge", None, 2),
        ("trn2.3xlarge", 1, 1),
        ("inf2.xlarge", None, 1),
    }
    assert max(s.placement.cores for s in shapes if s.lnc) == 8
    assert "trn2.3xlarge, lnc 1, " in str(next(s for s in shapes if s.lnc))


def test_experts_are_divided_among_the_tensor_ranks_by_software_that_does_that() -> None:
    plain = list(space().shapes(**SMALL))
    mixture = list(space().shapes(**SMALL, experts=8))
    divided = [shape for shape in mixture if shape.placement.expert > 1]
    assert [shape for shape in mixture if shape.placement.expert == 1] == plain
    assert {shape.placement.tensor for shape in divided} == {2, 4, 8}
    for shape in divided:
        assert (shape.placement.expert, shape.placement.pipeline) == (shape.placement.tensor, 1)
        assert shape.placement.cores <= shape.device.cores
        assert f"expert {shape.placement.expert}" in str(shape)
    others = replace(space(), profiles=(PROFILES["transformers-neuronx"],))
    assert not [shape for shape in others.shapes(**SMALL, experts=8) if shape.placement.expert > 1]
