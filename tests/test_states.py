"""Recurrent models: one state a sequence, while others come and go; requests without room are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort, Submit
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.errors import UserError
from corepipe.models import registry
from corepipe.models.fields import Fields
from corepipe.neuron.formats import FORMATS
from tests import computed
from tests.parity import expected
from tests.support import answers

NAME = "mamba2-groups"
INNER, GROUPS, STATES, TAPS, LAYERS = 192, 4, 27, 3, 2
KEPT = LAYERS * (INNER * STATES + (TAPS - 1) * (INNER + 2 * GROUPS * STATES))
"""Numbers that are kept of a sequence."""
PUBLISHED = registry.architecture("mamba2-130m")
SMALL = {
    "model_type": "mamba2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 16,
    "n_groups": 2,
    "vocab_size": 64,
}


def engine(path: Path, **options: Any) -> Driver:
    return computed.engine(path, **{"max_model_len": 512, "block_size": 32, **options})


def submits(count: int = 5, tokens: int = 12) -> list[Submit]:
    return computed.drawn(expected.load(NAME).prompt, count, tokens)


@pytest.mark.parametrize("longest", [64, 512, 1 << 20])
def test_a_sequence_costs_its_state_whatever_its_length(longest: int, folder: Any) -> None:
    config = EngineConfig(model=str(folder(NAME)), max_model_len=longest, pipeline=1, tensor=1, data=1)
    plan = plan_device(config, registry.load(folder(NAME)))
    assert plan.memory.block_bytes == 4 * KEPT
    assert plan.memory.num_blocks == config.max_num_seqs
    (core,) = plan.describe()["cores"]
    assert (core["state_bytes_per_sequence"], core["kv_bytes_per_token"]) == (4 * KEPT, 0)


def test_a_published_model_keeps_what_it_is_known_for() -> None:
    """24 layers of 24 heads of 64 x 128, and of three rows of a convolution: 19.4 MB."""
    kept = sum(state.per_sequence for state in PUBLISHED.graph(FORMATS["bf16"]).states())
    assert kept == 24 * (24 * 64 * 128 + 3 * (1536 + 256))


@pytest.mark.parametrize("options", [{}, {"tensor": 2}, {"pipeline": 2}, {"data": 2}])
def test_who_finds_no_state_waits_and_nothing_leaks(options: dict[str, int], folder: Any) -> None:
    asked = submits()
    room: dict[str, Any] = {"max_model_len": 512, "block_size": 32, **options}
    wanted, _ = computed.answered(folder(NAME), asked, **room)
    found, stats = computed.answered(folder(NAME), asked, num_blocks=1, max_num_batched_tokens=48, **room)
    computed.check_same(found, wanted)
    assert {(one.blocks_held, one.blocks_cached, one.preemptions) for one in stats} == {(0, 0, 0)}


def test_an_aborted_request_gives_its_state_back(folder: Any) -> None:
    first, second, *_ = submits()
    driver = engine(folder(NAME), num_blocks=1)
    driver.handle(first)
    driver.turn()
    driver.handle(Abort(first.id))
    while driver.busy:
        driver.turn()
    found = answers(driver, [second])
    assert found[second.id].tokens
    assert driver.stats()[0].blocks_held == 0
    driver.close()


@pytest.mark.parametrize("name", [NAME, "bamba"])
def test_an_answer_goes_on_where_another_engine_was_lost(name: str, folder: Any) -> None:
    """The other engine recomputes the answer's state, in other chunks."""
    asked = computed.drawn(expected.load(name).prompt, 3)[2]
    room: dict[str, Any] = {"max_model_len": 512, "block_size": 16}
    whole = computed.answered(folder(name), [asked], **room)[0][asked.id].tokens
    rest = replace(asked, generated=whole[:7])
    found, _ = computed.answered(folder(name), [rest], max_num_batched_tokens=48, **room)
    assert found[asked.id].tokens == whole[7:]


def test_a_state_that_does_not_fit_is_refused_in_a_line() -> None:
    large = {**SMALL, "hidden_size": 8192, "num_heads": 256, "head_dim": 64, "state_size": 4096}
    model = registry.Architecture("large", Fields(Path("config.json"), {**large, "num_hidden_layers": 64}))
    config = EngineConfig(model="large", instance="inf2.xlarge", pipeline=1, tensor=1, data=1)
    with pytest.raises(UserError, match=r"does not fit the memory of inf2.xlarge; (use --|no instance)"):
        plan_device(config, model)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"n_groups": 3}, r"num_heads \(4\) is not a multiple of n_groups \(3\)"),
        ({"head_dim": 32}, r"num_heads \(4\) times head_dim \(32\) must be expand times hidden_size \(64\)"),
        ({"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two numbers"),
        ({"time_step_limit": [0.0]}, "time_step_limit must be two numbers"),
        ({"time_step_limit": [0.0, "much"]}, "time_step_limit must be two numbers"),
        ({"conv_kernel": 1}, "conv_kernel must be an integer from 2"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        registry.Architecture("small", Fields(Path("config.json"), {**SMALL, **changes}))


def test_heads_that_the_kernels_do_not_take_are_timed_alone() -> None:
    odd = {**SMALL, "num_heads": 8, "head_dim": 8}
    graph = registry.Architecture("odd", Fields(Path("config.json"), odd)).graph(FORMATS["bf16"], 64)
    assert "heads of 8 elements" in str(graph.refusal())


@pytest.mark.parametrize("tensor", [3, 8])
def test_ranks_that_would_cut_a_group_are_refused(tensor: int, folder: Any) -> None:
    with pytest.raises(UserError, match="use a degree that divides 4"):
        engine(folder(NAME), tensor=tensor)


def test_nobody_guesses_for_a_state_that_cannot_go_back(folder: Any) -> None:
    with pytest.raises(UserError, match=r"--speculative-config: .* keeps one state a sequence"):
        engine(folder(NAME), speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3))
    (asked,) = submits(1)
    driver = engine(folder(NAME))
    driver.handle(replace(asked, prediction=[1, 2, 3]))
    (refused,) = driver.turn()
    assert (refused.error_kind, driver.busy) == ("invalid", False)
    assert "prediction: mamba2-groups keeps one state" in str(refused.error)
    driver.close()
