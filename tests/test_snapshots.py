"""States of recurrent models that stay at some places: who begins alike goes on from there, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corepipe.engine.assembly.snapshots import CLOSEST
from corepipe.engine.config import EngineConfig, KVEventsConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort, Submit
from corepipe.engine.process.kv_publisher import published_events
from corepipe.engine.process.prefix_changes import prefix_changes
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.errors import UserError
from tests import computed
from tests.parity import expected
from tests.support import answers

HYBRIDS = ("bamba", "bamba-biases", "granitemoehybrid", "granitemoehybrid-dense")
NAMES = ("mamba2", "mamba2-groups", *HYBRIDS)
POSITIONS = 4 * CLOSEST
SHARED = 2 * CLOSEST + 100
"""Tokens that all prompts begin with: two snapshots, and some more."""
ANSWERS = 12
PLACES: dict[str, dict[str, Any]] = {
    "one core": {},
    "chunks": {"max_num_batched_tokens": 100},
    "pipeline": {"pipeline": 2, "max_num_batched_tokens": 300},
    "replicas": {"data": 2},
}


def engine(path: Path, **options: Any) -> Driver:
    return computed.engine(path, **{"max_model_len": POSITIONS, "block_size": 32, **options})


def submits(name: str) -> list[Submit]:
    """Every other one is drawn."""
    words = expected.load(name).prompt
    prompt = (words * (SHARED // len(words) + 1))[:SHARED]
    drawn, plain = (
        TokenSampling(temperature=1.2, seed=7, logprobs=3),
        TokenSampling(temperature=0.0, logprobs=3),
    )
    return [
        Submit(f"r{i}", prompt + words[: 40 * i + 1], ANSWERS, drawn if i % 2 else plain) for i in range(4)
    ]


@pytest.fixture(scope="module")
def wanted(folder: Any) -> Any:
    """The answers of a server that keeps nothing but the latest states."""

    @cache
    def of(name: str) -> dict[str, Any]:
        room = {"max_model_len": POSITIONS, "block_size": 32}
        return computed.each_alone(folder(name), submits(name), **room)

    return of


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_without(name: str, where: str, folder: Any, wanted: Any) -> None:
    driver = engine(folder(name), **PLACES[where])
    for _ in range(2):
        computed.check_same(answers(driver, submits(name)), wanted(name))
    stats = driver.stats()
    driver.close()
    assert sum(one.prefix_hits for one in stats) >= 4 * 2 * CLOSEST, "all of those that came again"
    assert [(one.blocks_held, one.preemptions) for one in stats] == [(0, 0)] * len(stats)
    assert all(one.blocks_cached > 0 for one in stats)
    assert name in HYBRIDS or all(one.blocks_cached <= one.blocks_total // 4 for one in stats)


def test_a_prefix_ends_at_the_last_snapshot_and_is_counted(folder: Any) -> None:
    driver = engine(folder("mamba2"))
    first, second, *_ = submits("mamba2")
    answers(driver, [first])
    before = driver.stats()[0]
    assert (before.prefix_queries, before.prefix_hits) == (len(first.prompt), 0)
    assert before.blocks_cached == 2, "after 256 and after 512 tokens"
    answers(driver, [second])
    (stats,) = driver.stats()
    driver.close()
    assert stats.prefix_hits == 2 * CLOSEST
    assert stats.prefix_queries == len(first.prompt) + len(second.prompt)


def test_one_state_is_enough_for_a_sequence_of_any_length(folder: Any, wanted: Any) -> None:
    """It takes its own along, and leaves nothing."""
    driver = engine(folder("mamba2"), num_blocks=1)
    computed.check_same(answers(driver, submits("mamba2")), wanted("mamba2"))
    (stats,) = driver.stats()
    driver.close()
    assert (stats.blocks_total, stats.blocks_held, stats.preemptions) == (1, 0, 0)


def test_snapshots_go_first(folder: Any) -> None:
    """All states can run at once, whatever snapshots are kept."""
    states = 8
    driver = engine(folder("mamba2"), num_blocks=states, max_num_seqs=states)
    first, *_ = submits("mamba2")
    answers(driver, [first])
    assert driver.stats()[0].blocks_cached == 1
    names = [f"other{i}" for i in range(states)]
    for i, name in enumerate(names):
        driver.handle(replace(first, id=name, prompt=first.prompt[1 + i :]))
    while driver.stats()[0].running < states:
        driver.turn()
    assert driver.stats()[0].blocks_cached == 0
    driver.handle(Abort(names))
    while driver.busy:
        driver.turn()
    assert driver.stats()[0].blocks_held == 0
    driver.close()


@pytest.mark.parametrize(
    "options", [{"clock": "virtual"}, {"prefix_cache": False}, {"max_model_len": CLOSEST}]
)
def test_where_none_stay_a_state_is_of_the_whole_sequence(options: dict[str, Any], folder: Any) -> None:
    """No Neuron software keeps any, so where the device decides there are none."""
    driver = engine(folder("mamba2"), **options)
    limits = driver._deployment.replicas[0].scheduler
    driver.close()
    assert (limits.state_span, limits.block_size, limits.prefix_cache) == (None, limits.max_model_len, False)
    assert limits.num_blocks == limits.max_num_seqs


def test_far_apart_where_the_longest_sequence_leaves_many(folder: Any) -> None:
    driver = engine(folder("mamba2"), max_model_len=1 << 16)
    limits = driver._deployment.replicas[0].scheduler
    driver.close()
    assert limits.state_span == limits.block_size == 4 * CLOSEST


def test_no_news_of_blocks(folder: Any) -> None:
    """A prefix is found by its last state alone, which who hears of blocks would not take for one."""
    driver = engine(folder("mamba2"))
    deployment = driver._deployment
    assert prefix_changes(deployment) is None
    config = EngineConfig(model="m", kv_events_config=KVEventsConfig(enable_kv_cache_events=True))
    with pytest.raises(UserError, match="keeps states of sequences"), published_events(config, deployment):
        pass
    driver.close()
