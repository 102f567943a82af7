"""Layers with windows give KV blocks back: the bits are those of layers that keep all, in less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.errors import UserError
from tests import computed
from tests.parity import expected
from tests.support import answers

WINDOWED = [
    "cohere2", "gemma2", "gemma3_text", "gpt_neo", "gpt_oss", "llama4_text", "mistral", "mixtral", "olmo3",
    "phi3", "starcoder2",
]  # fmt: skip
"""Windows of 40 positions, in all layers or all but one; Llama 4's are chunks."""
FORMATS = ("fp32", "bf16", "int8", "int8-weights")
BLOCK, POSITIONS = 16, 320
LENGTHS = (260, 30, 45, 200, 17, 120)
"""The lengths of prompts with the same beginning: longer than windows, and shorter."""
ANSWERS = 50
CROWDED = {"max_num_batched_tokens": 48, "num_blocks": 24}


def engine(path: Path, fmt: str, **options: Any) -> Driver:
    return computed.engine(path, fmt, **{"max_model_len": POSITIONS, "block_size": BLOCK, **options})


def submits(name: str) -> list[Submit]:
    """Every other one is drawn."""
    prompt = expected.load(name).prompt
    drawn = TokenSampling(temperature=1.2, top_p=0.95, seed=7, logprobs=3)
    plain = TokenSampling(temperature=0.0, logprobs=3)
    return [
        Submit(f"r{i}", prompt[:length], ANSWERS, drawn if i % 2 else plain)
        for i, length in enumerate(LENGTHS)
    ]


def windows(driver: Driver) -> tuple[int | None, ...]:
    return driver._deployment.replicas[0].scheduler.windows


@pytest.mark.parametrize("name", WINDOWED)
def test_bits_are_those_of_layers_that_keep_everything(name: str, folder: Any) -> None:
    """In chunks, preempted, after prefixes that were cached, over two cores; in one format of each model, of
    every third with a cache of int8."""
    number = WINDOWED.index(name)
    fmt, kept = FORMATS[number % len(FORMATS)], {"kv_cache_dtype": "auto" if number % 3 else "int8"}
    whole = engine(folder(name), fmt, clock="virtual", prefix_cache=False, **kept)
    assert windows(whole) == (None,), "a device's software keeps all"
    wanted = {s.id: answers(whole, [s])[s.id] for s in submits(name)}
    whole.close()
    crowded = engine(folder(name), fmt, **CROWDED, **kept)
    assert {w for w in windows(crowded) if w is not None} == {40 + 63}
    computed.check_same(answers(crowded, submits(name)), wanted)
    (stats,) = crowded.stats()
    assert stats.preemptions > 0
    assert stats.blocks_held == 0
    crowded.close()
    spread = engine(folder(name), fmt, pipeline=2, max_num_batched_tokens=32, **kept)
    computed.check_same(answers(spread, submits(name)), wanted)
    before = spread.stats()[0].prefix_hits
    computed.check_same(answers(spread, submits(name)), wanted)
    assert spread.stats()[0].prefix_hits - before > sum(LENGTHS) / 2, "prefixes longer than windows, too"
    spread.close()


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_a_long_sequence_fits_in_few_blocks(name: str, folder: Any) -> None:
    """512 positions are 32 blocks of all layers.  With chunks of 32 a window of 40 + 63 takes 10 of a group;
    of Gemma's three groups one keeps everything."""
    blocks = {"mistral": 10, "gemma3_text": -(-(10 + 10 + 32) // 3)}[name]
    room: dict[str, Any] = {"max_model_len": 512, "max_num_batched_tokens": 32}
    asked = Submit("long", expected.load(name).prompt, 211, TokenSampling(temperature=0.0, logprobs=1))
    whole = engine(folder(name), "bf16", clock="virtual", **room)
    wanted = answers(whole, [asked])["long"]
    whole.close()
    for too_few in ({"num_blocks": blocks, "clock": "virtual"}, {"num_blocks": blocks - 1}):
        with pytest.raises(
            UserError, match=f"--num-blocks {too_few['num_blocks']} holds less than one sequence"
        ):
            engine(folder(name), "bf16", **room, **too_few)
    small = engine(folder(name), "bf16", **room, num_blocks=blocks)
    found = answers(small, [asked])["long"]
    (stats,) = small.stats()
    small.close()
    assert len(found.tokens) == 211
    assert (found.tokens, found.logprobs) == (wanted.tokens, wanted.logprobs)
    assert (stats.preemptions, stats.blocks_held) == (0, 0)
    assert stats.blocks_total == blocks * len(windows(small))


def test_who_leaves_gives_everything_back(folder: Any) -> None:
    driver = engine(folder("gemma3_text"), "bf16", **CROWDED)
    for s in submits("gemma3_text"):
        driver.handle(s)
    for number in range(len(LENGTHS)):
        for _ in range(6):
            driver.turn()
        driver.handle(Abort([f"r{number}"]))
    while driver.busy:
        driver.turn()
    assert driver.stats()[0].blocks_held == 0
    driver.close()


def test_the_placement_tells_of_groups(folder: Any) -> None:
    driver = engine(folder("gemma3_text"), "bf16")
    told = driver._deployment.ready.placement["kv_layer_groups"]
    driver.close()
    assert told == [
        {"layers": [0], "positions": 103},
        {"layers": [2], "positions": 103},
        {"layers": [1], "positions": None},
    ]


@pytest.mark.parametrize(("name", "longest"), [("llama", POSITIONS), ("gemma3_text", 40 + 63)])
def test_what_no_sequence_outgrows_is_no_window(name: str, longest: int, folder: Any) -> None:
    driver = engine(folder(name), "bf16", max_model_len=longest)
    assert windows(driver) == (None,)
    assert "kv_layer_groups" not in driver._deployment.ready.placement
    driver.close()
