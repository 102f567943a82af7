"""Moves of a rotation, made at once, against the same moves one by one: two schedulers in lockstep."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from corepipe.scheduler.policy import policy
from corepipe.scheduler.request import Batch, Request
from corepipe.scheduler.scheduler import Pipeline, QueueFull, Scheduler, SchedulerConfig
from corepipe.simulation.rotation import Rotation, advance, find
from tests.scheduler.world import any_pipeline, config, run


class Side:
    """A scheduler and its batches in flight.  Every token is 0."""

    def __init__(self, limits: SchedulerConfig, policy_name: str, pipeline: Pipeline) -> None:
        self.scheduler = Scheduler(limits, policy(policy_name), pipeline)
        self.flights: deque[Batch] = deque()

    def add(self, **fields: Any) -> bool:
        try:
            self.scheduler.add(Request(**fields))
        except QueueFull:
            return False
        return True

    def launch(self) -> None:
        while batch := self.scheduler.schedule():
            self.flights.append(batch)

    def land(self) -> None:
        if self.flights:
            run(self.scheduler, self.flights.popleft(), token=0)

    def rotation(self) -> Rotation | None:
        return find(self.scheduler, tuple(self.flights))

    def move(self) -> None:
        """One move, as a rotation says that it goes."""
        before = [chunk.request for chunk in self.flights[0].chunks]
        self.land()
        batch = self.scheduler.schedule()
        assert batch is not None
        assert {chunk.request for chunk in batch.chunks} == set(before)
        self.flights.append(batch)

    def advance(self, rotation: Rotation, moves: int) -> None:
        self.flights = deque(advance(self.scheduler, rotation, moves))

    def state(self) -> dict[str, Any]:
        scheduler = self.scheduler
        scheduler.check()
        pool = scheduler._kv.pool
        requests = {
            r.id: (
                list(r.tokens),
                r.num_tokens,
                r.num_done,
                r.num_computed,
                r.block_ids[:],
                r.num_preemptions,
            )
            for r in scheduler._requests.values()
        }
        flights = [
            (b.number, [(c.request.id, c.start, c.count, c.samples) for c in b.chunks]) for b in self.flights
        ]
        return {
            "requests": requests,
            "flights": flights,
            "pool": (list(pool._free), list(pool._references), list(pool._cached), dict(pool._block_of)),
            "queue": [r.id for r in scheduler._queue],
            "running": [r.id for r in scheduler._running],
            "counters": (scheduler.preemptions, scheduler.prefix_hits, scheduler.prefix_queries),
        }


def limits(rng: random.Random) -> SchedulerConfig:
    size = rng.choice([1, 2, 4, 8])
    longest = 64
    return config(
        num_blocks=rng.randint(-(-longest // size), 4 * -(-longest // size)),
        block_size=size,
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.randint(4, 40),
        max_model_len=longest,
        prefix_cache=rng.random() < 0.7,
        stages=rng.choice([1, 1, 2, 3, 4]),
    )


def fields(rng: random.Random, number: int) -> dict[str, Any]:
    """Prompts begin alike; many are what another one's answer makes of it, as all tokens are 0."""
    shared = rng.choice([[0] * 20, [0, 1, 2, 3] * 5])
    own = [0] * rng.randint(1, 20) if rng.random() < 0.5 else [rng.randrange(3)] * rng.randint(1, 12)
    prompt = shared[: rng.randint(0, 20)] + own
    return {
        "id": f"r{number}",
        "prompt": prompt,
        "max_tokens": rng.randint(1, 40),
        "arrival": number / 8,
        "priority": rng.choice([0, 0, 0, 1]),
    }


def lockstep(seed: int, steps: int) -> tuple[int, int]:
    """How many moves were made at once, and how many requests came while it went."""
    rng = random.Random(seed)
    within = limits(rng)
    of = within, rng.choice(["mixed", "segregated"]), any_pipeline(rng, within.stages)
    fast, slow = Side(*of), Side(*of)
    load, moves, number = rng.uniform(0.05, 0.6), 0, 0
    for _ in range(steps):
        if rng.random() < load:
            asked = fields(rng, number)
            number += 1
            assert fast.add(**asked) == slow.add(**asked)
        for side in (fast, slow):
            side.land()
            side.launch()
        rotation = fast.rotation()
        if rotation is not None and rotation.most > 0 and rng.random() < 0.8:
            count = rng.randint(1, rotation.most)
            fast.advance(rotation, count)
            for _ in range(count):
                slow.move()
            moves += count
            assert fast.state() == slow.state()
    while slow.flights or slow.scheduler.has_unfinished():
        for side in (fast, slow):
            side.land()
            side.launch()
    assert fast.state() == slow.state()
    assert fast.scheduler.blocks_held == 0
    return moves, fast.scheduler.preemptions


UNTRIED = 210
"""Two stages whose one batch is full: the head of the queue is not tried."""
TRIED_FIRST = 624
"""Segregated: the head is tried before those who run take blocks."""


@pytest.mark.parametrize(
    "seeds",
    [[UNTRIED, TRIED_FIRST, *range(100, 125)], pytest.param(range(700, 1500), marks=pytest.mark.slow)],
    ids=len,
)
def test_moves_made_at_once_are_the_same_moves(seeds: Sequence[int]) -> None:
    for seed in seeds:
        lockstep(seed, 60)


def test_random_walks_meet_every_situation() -> None:
    results = [lockstep(seed, 150) for seed in range(20)]
    assert sum(moves for moves, _ in results) > 500
    assert sum(preemptions for _, preemptions in results) > 10
