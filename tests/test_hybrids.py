"""Models of recurrent layers and layers with attention: a sequence has KV blocks, and a state beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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

NAME = "bamba"
INNER, GROUPS, STATES, TAPS = 192, 2, 27, 4
STATE = 2 * (INNER * STATES + (TAPS - 1) * (INNER + 2 * GROUPS * STATES))
"""Numbers that two of the three layers, the recurrent ones, keep of a sequence."""
TOKEN = 2 * 2 * 24
"""Numbers that the other layer keeps of a token."""
BLOCK, POSITIONS = computed.BLOCK, 512
SMALL = {
    "model_type": "bamba",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_layer_indices": [1, 3],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "vocab_size": 64,
}


def settings(path: Path, **options: Any) -> EngineConfig:
    return computed.settings(path, **{"max_model_len": POSITIONS, **options})


def engine(path: Path, **options: Any) -> Driver:
    return computed.engine(path, **{"max_model_len": POSITIONS, **options})


def submits(count: int = 5, tokens: int = 12) -> list[Submit]:
    return computed.drawn(expected.load(NAME).prompt, count, tokens)


@pytest.mark.parametrize("longest", [64, POSITIONS])
def test_a_sequence_costs_its_state_and_its_tokens(longest: int, folder: Any) -> None:
    config = settings(folder(NAME), max_model_len=longest)
    plan = plan_device(config, registry.load(folder(NAME)))
    assert plan.memory.block_bytes == BLOCK * TOKEN * 2
    (core,) = plan.memory.cores
    assert core.states == config.max_num_seqs * STATE * 4
    (told,) = plan.describe()["cores"]
    assert (told["state_bytes_per_sequence"], told["kv_bytes_per_token"]) == (STATE * 4, TOKEN * 2)
    assert told["memory_bytes"]["kv_cache"] == core.states + core.block * plan.memory.num_blocks


def test_a_published_model_keeps_what_it_is_known_for() -> None:
    """29 layers of 128 heads of 64 x 128 and three rows of a convolution, 3 with 8 key/value heads of 128."""
    graph = registry.architecture("bamba-9b").graph(FORMATS["bf16"])
    kept = [*graph.states()]
    assert sum(state.per_sequence for state in kept) == 29 * (128 * 64 * 128 + 3 * (8192 + 256))
    assert sum(state.per_token for state in kept) == 3 * 2 * 8 * 128


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": POSITIONS // BLOCK},
        {"max_num_seqs": 2},
        {"kv_cache_bytes": 3 * STATE * 4 * 2},
        {"clock": "virtual"},
        {"clock": "virtual", "num_blocks": POSITIONS // BLOCK, "pipeline": 2},
        {"tensor": 2},
    ],
)
def test_who_finds_no_room_waits_or_comes_again_and_nothing_leaks(
    options: dict[str, Any], folder: Any
) -> None:
    """Few blocks, few states, and as many of both as a device would have; ranks have other bits."""
    asked = submits(8, tokens=70)
    room: dict[str, Any] = {"max_model_len": POSITIONS}
    free = {**room, "prefix_cache": False, "tensor": options.get("tensor", 1)}
    wanted, _ = computed.answered(folder(NAME), asked, **free)
    found, (stats,) = computed.answered(folder(NAME), asked, max_num_batched_tokens=48, **room, **options)
    computed.check_same(found, wanted)
    assert stats.blocks_held == 0
    assert stats.preemptions > 0 or "num_blocks" not in options


def test_states_that_are_few_are_told_and_are_all_that_run(folder: Any) -> None:
    driver = engine(folder(NAME), kv_cache_bytes=4 * STATE * 4)
    assert driver._deployment.ready.placement["state_blocks_per_replica"] == 2
    for s in submits(4, tokens=40):
        driver.handle(s)
    for _ in range(6):
        driver.turn()
    assert driver.stats()[0].running == 2
    driver.handle(Abort([f"r{i}" for i in range(4)]))
    while driver.busy:
        driver.turn()
    (stats,) = driver.stats()
    driver.close()
    assert (stats.blocks_held, stats.running, stats.waiting) == (0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"attn_layer_indices": [4]}, r"attn_layer_indices must be numbers of layers, from 0 to 3"),
        ({"attn_layer_indices": 1}, r"attn_layer_indices must be a list"),
        ({"attn_rotary_emb": 16}, r"attn_rotary_emb \(16\) must be half a head \(8\)"),
        ({"mamba_n_groups": 3}, r"mamba_n_heads \(8\) is not a multiple of mamba_n_groups \(3\)"),
        ({"mamba_d_head": 32}, r"mamba_n_heads \(8\) times mamba_d_head \(32\) must be mamba_expand times"),
        ({"time_step_limit": [1.0, 0.5]}, "time_step_limit must be two numbers"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        registry.Architecture("small", Fields(Path("config.json"), {**SMALL, **changes}))


def test_without_attention_it_keeps_states_alone() -> None:
    fields = Fields(Path("config.json"), {**SMALL, "attn_layer_indices": None, "mamba_d_head": "auto"})
    graph = registry.Architecture("small", fields).graph(FORMATS["bf16"], 64)
    assert graph.is_recurrent
    assert not graph.is_hybrid


def test_what_cannot_be_is_refused_by_name(folder: Any) -> None:
    guesses = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    with pytest.raises(UserError, match=r"--speculative-config: .* keeps one state a sequence"):
        engine(folder(NAME), speculative_config=guesses)
    with pytest.raises(UserError, match="use --pipeline instead"):
        engine(folder("bamba-biases"), tensor=2)
    with pytest.raises(UserError, match="it is no hybrid recurrent decoder, as the served model is"):
        engine(folder(NAME), timing_model="mamba2-130m")
    with pytest.raises(UserError, match=r"--num-blocks 31 holds less than one sequence"):
        engine(folder(NAME), num_blocks=POSITIONS // BLOCK - 1)
