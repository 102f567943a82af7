"""Steps that are queued before the scheduler asks for them: they change nothing, and most steps are of
these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.batch.arrays import Ids
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort, Output, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.step import ChainingExecutor
from tests.servers import TINY

LIMITS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "block_size": 16,
    "num_blocks": 8,
    "max_model_len": 80,
}
GREEDY = TokenSampling(temperature=0.0)


class Counted:
    """Counts the queued steps that are taken, too late or not asked for."""

    def __init__(self, executor: ChainingExecutor) -> None:
        self._executor = executor
        self.taken = self.too_late = self.unwanted = 0

    def go_on(self, ticket: int, ends: Ids) -> int:
        return self._executor.go_on(ticket, ends)

    def adopt(self, ticket: int) -> bool:
        runs = self._executor.adopt(ticket)
        self.taken += runs
        self.too_late += not runs
        return runs

    def drop(self, ticket: int) -> None:
        self.unwanted += 1
        self._executor.drop(ticket)

    def heed(self, files: Sequence[int]) -> None:
        self._executor.heed(files)


def deployment(**options: object) -> Deployment:
    config = EngineConfig(model=str(TINY), **{**LIMITS, **options})  # type: ignore[arg-type]
    return assemble(config, lambda _what, _done: None)


def without(parts: Deployment) -> Deployment:
    return replace(parts, replicas=tuple(replace(each, chaining=None) for each in parts.replicas))


def counted(parts: Deployment) -> tuple[Deployment, Counted]:
    (only,) = parts.replicas
    assert only.chaining is not None
    counting = Counted(only.chaining)
    return replace(parts, replicas=(replace(only, chaining=counting),)), counting


@pytest.fixture(scope="module")
def drivers() -> Iterator[tuple[Driver, Driver, Counted]]:
    """Two drivers of the same model: one that queues nothing, one that does."""
    counting_parts, counting = counted(deployment())
    plain, queued = Driver(without(deployment())), Driver(counting_parts)
    yield plain, queued, counting
    plain.close()
    queued.close()


Script = dict[int, list[Submit | Abort]]
"""The commands that come before each turn."""


def script(seed: int, requests: int = 24) -> Script:
    """Makes requests of all kinds at random turns; some are aborted, some end at a token."""
    rng = np.random.default_rng(seed)
    ways = (
        GREEDY,
        TokenSampling(temperature=1.5, seed=seed, logprobs=2),
        TokenSampling(temperature=0.7, top_k=20, seed=seed + 1),
        TokenSampling(temperature=0.0, repetition_penalty=1.3),
        TokenSampling(temperature=0.0, prompt_logprobs=1),
    )
    found: Script = {}
    for number in range(requests):
        turn, name = int(rng.integers(0, 60)), f"{seed}-{number}"
        prompt = rng.integers(0, 200, rng.integers(1, 40)).tolist()
        stops = rng.integers(0, 200, 20).tolist() if rng.random() < 0.5 else []
        way = ways[int(rng.choice(len(ways), p=(0.4, 0.3, 0.2, 0.05, 0.05)))]
        submit = Submit(name, prompt, int(rng.integers(1, 24)), way, stop_ids=stops)
        found.setdefault(turn, []).append(submit)
        if rng.random() < 0.2:
            found.setdefault(turn + int(rng.integers(1, 12)), []).append(Abort([name]))
    return found


def played(driver: Driver, script: Script) -> list[list[Output]]:
    """Returns the outputs of each turn."""
    news, turn = [], 0
    while turn <= max(script) or driver.busy:
        for command in script.get(turn, []):
            driver.handle(command)
        news.append(driver.turn() if driver.busy else [])
        turn += 1
    return news


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]
)
def test_the_news_are_those_without(drivers: tuple[Driver, Driver, Counted], seed: int) -> None:
    plain, queued, counting = drivers
    expected, before = played(plain, script(seed)), counting.taken
    assert played(queued, script(seed)) == expected
    assert counting.taken > before
    assert [r.scheduler.preemptions for r in queued.replicas] == [
        r.scheduler.preemptions for r in plain.replicas
    ]


def test_they_meet_every_situation(drivers: tuple[Driver, Driver, Counted]) -> None:
    """Steps that are taken, that were dropped at a token, that the scheduler did not ask for; requests that
    are preempted."""
    _, queued, counting = drivers
    for seed in range(1000, 1020):
        played(queued, script(seed))
        if min(
            counting.taken, counting.too_late, counting.unwanted, queued.replicas[0].scheduler.preemptions
        ):
            return
    raise AssertionError(vars(counting))


def test_of_one_answer_each_step_but_those_of_new_blocks_is_queued(
    drivers: tuple[Driver, Driver, Counted],
) -> None:
    """A block has 16 positions; it is not there before its first position is scheduled."""
    _, queued, counting = drivers
    before = counting.taken
    played(queued, {0: [Submit("one", [5, 6, 7], 33, GREEDY)]})
    assert counting.taken - before == 32 - 2


@pytest.mark.parametrize("options", [{"clock": "device"}, {"data": 2}, {"pipeline": 2}])
def test_where_nothing_is_queued(options: dict[str, object]) -> None:
    parts = deployment(**options)
    assert all(replica.chaining is None for replica in parts.replicas)
    parts.close()
