"""A scheduler whose crowd is one, against the one that serves: two in lockstep, to the last KV block."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.profiles import PROFILES
from corepipe.neuron.timeline import Timeline
from corepipe.planning.simulation.crowd import Together
from corepipe.planning.simulation.crowd_scheduler import CrowdScheduler
from corepipe.planning.simulation.looped import LoopedSimulation
from corepipe.planning.simulation.simulated import SimulatedRequest
from corepipe.planning.workload import Segment, Session, Turn
from corepipe.scheduler.micro_batches import OneForEachStage
from corepipe.scheduler.policy import policy
from corepipe.scheduler.request import Batch
from corepipe.scheduler.scheduler import QueueFull, Scheduler, SchedulerConfig
from tests.planning.simulations import Cost, limits, play, workload
from tests.scheduler.world import config

State = dict[str, Any]


class Side:
    """A scheduler and the batch that is in flight."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.flight: Batch | None = None
        self.ended: list[str] = []

    def add(self, number: int, session: Session) -> bool:
        try:
            self.scheduler.add(SimulatedRequest.of(number, session, 0, number / 8))
        except QueueFull:
            return False
        return True

    def move(self) -> None:
        """Lands what is in flight, and schedules what is next."""
        if self.flight is not None:
            drawn = [(0,) if chunk.samples else () for chunk in self.flight.chunks]
            events = self.scheduler.update(self.flight, drawn)
            self.ended += [e.request.id for e in events if e.finish_reason is not None]
        self.flight = self.scheduler.schedule()

    def state(self) -> State:
        scheduler = self.scheduler
        scheduler.check()
        pool = scheduler._kv.pool
        return {
            "requests": {r.id: self._request(r) for r in scheduler._requests.values()},
            "flight": self.flight and (self.flight.number, self._chunks()),
            "pool": (list(pool._free), list(pool._references), list(pool._cached), dict(pool._block_of)),
            "queue": [r.id for r in scheduler._queue],
            "running": [r.id for r in scheduler._running],
            "counters": (scheduler.preemptions, scheduler.prefix_hits, scheduler.prefix_queries),
            "ended": self.ended,
        }

    def _request(self, request: Any) -> tuple[Any, ...]:
        computed = request.num_computed + self._rounds(request)
        if isinstance(self.flight, Together) and request in self.flight.crowd._joined:
            computed += 1
        known = (request.num_tokens, request.num_done)
        return (
            *(count + self._rounds(request) for count in known),
            computed,
            request.block_ids[:],
            request.room,
            request.num_preemptions,
        )

    def _rounds(self, request: Any) -> int:
        """Tokens that it has got in the crowd, which are not written back."""
        if not isinstance(self.scheduler, CrowdScheduler):
            return 0
        crowd = self.scheduler.crowd
        return crowd.rounds - crowd._joined[request] if request in crowd._joined else 0

    def _chunks(self) -> list[tuple[Any, ...]]:
        assert self.flight is not None
        crowd: list[tuple[Any, ...]] = []
        if isinstance(self.flight, Together):
            members = list(self.flight.crowd._joined)
            crowd = [(r.id, r.num_done + self._rounds(r), 1, True) for r in members]
            assert len(members) == self.flight.members
            assert sum(start + 1 for _, start, *_ in crowd) == self.flight.contexts
        return crowd + [(c.request.id, c.start, c.count, c.samples) for c in self.flight.chunks]


def within(rng: random.Random) -> SchedulerConfig:
    size, longest = rng.choice([1, 2, 4, 8]), 64
    return config(
        num_blocks=rng.randint(-(-longest // size), 5 * -(-longest // size)),
        block_size=size,
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.randint(3, 40),
        max_model_len=longest,
        prefix_cache=rng.random() < 0.7,
    )


def asked(rng: random.Random, number: int) -> Session:
    """Prompts begin alike; some are what another one's answer makes of it."""
    shared = (Segment(-1, 12), Segment(-2 - rng.randrange(2), rng.randint(1, 9)))[: rng.randint(0, 2)]
    own = Segment(2 * rng.randrange(number + 1) + 1, rng.randint(1, 20))
    answer = rng.choice([2 * number + 1, own.id])
    return Session(None, (Turn((*shared, own), rng.randint(1, 40), answer),))


def lockstep(seed: int, steps: int) -> tuple[int, int, int]:
    """Moves of the crowd by itself that were made at once, batches of it with others, and preemptions."""
    rng = random.Random(seed)
    of = within(rng), policy(rng.choice(["mixed", "segregated"])), OneForEachStage(1)
    fast, slow = Side(CrowdScheduler(*of)), Side(Scheduler(*of))
    load, repeated, mixed = rng.uniform(0.05, 0.6), 0, 0
    for number in range(steps):
        if rng.random() < load:
            session = asked(rng, number)
            assert fast.add(number, session) == slow.add(number, session)
        fast.move()
        slow.move()
        assert fast.state() == slow.state()
        if isinstance(fast.flight, Together) and fast.flight.chunks:
            mixed += 1
        elif isinstance(fast.flight, Together) and rng.random() < 0.5:
            assert isinstance(fast.scheduler, CrowdScheduler)
            moves = rng.randint(0, max(0, fast.scheduler.repetitions()))
            fast.flight = fast.scheduler.repeat(fast.flight, moves)
            for _ in range(moves):
                slow.move()
            repeated += moves
            assert fast.state() == slow.state()
    while slow.scheduler.has_unfinished():
        fast.move()
        slow.move()
    assert fast.state() == slow.state()
    assert fast.scheduler.blocks_held == 0
    return repeated, mixed, fast.scheduler.preemptions


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_it_decides_as_the_scheduler_that_serves(seed: int) -> None:
    lockstep(seed, 60)


def test_random_walks_meet_every_situation() -> None:
    repeated, mixed, preemptions = zip(*(lockstep(seed, 150) for seed in range(40)), strict=True)
    assert sum(repeated) > 500
    assert sum(mixed) > 100
    assert sum(preemptions) > 10


def alive() -> int:
    return sum(isinstance(each, SimulatedRequest) for each in gc.get_objects())


@pytest.mark.parametrize("replicas", [1, 3])
def test_memory_is_that_of_who_is_there_and_a_few_figures_of_who_was(replicas: int) -> None:
    """Requests that have ended are gone, and those to come are not there yet."""
    load = workload(600, 6.0 * replicas, input_len="uniform:10:100", output_len="uniform:1:60")
    timelines = [Timeline(Cost(fixed=0.01), PROFILES["ideal"]) for _ in range(replicas)]  # type: ignore[arg-type]
    simulation = LoopedSimulation(limits(), policy("mixed"), timelines, load)
    before, seen = alive(), []

    def look(_what: str, _done: float) -> None:
        schedulers = [replica.scheduler for replica in simulation.record.replicas]
        seen.append(alive() - before - sum(len(scheduler.request_ids) for scheduler in schedulers))

    record = simulation.run(look)
    assert len(record.requests["arrival"]) == 600
    assert len(seen) > 5
    assert max(seen) <= 2 * replicas  # those of the batch that landed last
    tokens = int(record.requests["output_tokens"].sum())
    assert record.nbytes <= 62 * sum(map(len, record.steps)) + 52 * 600 + 12 * tokens


def test_figures_take_the_same_bytes_however_many_requests_there_are() -> None:
    small, large = (
        play(workload(requests, 3.0, input_len=20, output_len=20), native=False).nbytes / requests
        for requests in (100, 400)
    )
    assert large < 1.1 * small
