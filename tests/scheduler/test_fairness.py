"""Requests of equal rank get equal shares, however many of their batches a pipeline takes at a time."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.request import Batch, Request, Status
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config, run, spans

POLICIES = ["mixed", "segregated"]


class Pipe:
    """A scheduler whose batches overlap; at most `most` are in flight."""

    def __init__(self, policy_name: str, most: int, **limits: int) -> None:
        roomy = {"num_blocks": 4096, "max_num_seqs": 32, "max_model_len": 1024, **limits}
        self.scheduler = Scheduler(config(**roomy), policy(policy_name))
        self.flights: deque[Batch] = deque()
        self.most = most

    def add(self, name: str, prompt: int = 4, priority: int = 0) -> Request:
        request = Request(name, [1] * prompt, 1000, priority=priority)
        self.scheduler.add(request)
        return request

    def turn(self, landings: int = 1) -> None:
        """Completes so many batches, and schedules as many as can follow."""
        for _ in range(min(landings, len(self.flights))):
            run(self.scheduler, self.flights.popleft())
        while len(self.flights) < self.most and (batch := self.scheduler.schedule()) is not None:
            self.flights.append(batch)


@pytest.mark.parametrize("policy_name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(
    requests=st.integers(1, 13),
    stages=st.integers(1, 8),
    most=st.integers(1, 8),
    budget=st.integers(4, 64),
    seed=st.integers(0, 2**32),
)
def test_the_busy_get_equal_shares(
    policy_name: str, requests: int, stages: int, most: int, budget: int, seed: int
) -> None:
    """Fewer batches may be in flight than the requests are shared out to, or fewer tokens fit a batch than
    there are requests; in any window two requests get as many tokens as each other, give or take two."""
    rng = random.Random(seed)
    pipe = Pipe(
        policy_name,
        min(most, stages),
        stages=stages,
        max_num_batched_tokens=max(budget, -(-requests // stages) + 1),
    )
    busy = [pipe.add(f"r{number}", rng.randint(1, 12)) for number in range(requests)]
    while any(request.num_generated == 0 for request in busy):
        pipe.turn()
    counts = []
    for _ in range(120):
        pipe.turn(rng.randint(1, 3))
        counts.append([request.num_generated for request in busy])
    for _ in range(20):
        first, last = sorted(rng.sample(range(len(counts)), 2))
        gained = [after - before for before, after in zip(counts[first], counts[last], strict=True)]
        assert max(gained) - min(gained) <= 2
    assert min(counts[-1]) > 120 // (requests + 1)


@pytest.mark.parametrize("policy_name", POLICIES)
@pytest.mark.parametrize("busy", [1, 5, 8, 12])
def test_a_newcomer_is_not_kept_out_by_a_full_pipe(policy_name: str, busy: int) -> None:
    """There are six micro-batches, and no more than four are ever in flight."""
    pipe = Pipe(policy_name, most=4, stages=6)
    for number in range(busy):
        pipe.add(f"r{number}")
    for _ in range(10 * busy):
        pipe.turn()
    newcomer = pipe.add("newcomer")
    for _ in range(6):
        pipe.turn()
    assert newcomer.num_generated >= 1


@pytest.mark.parametrize("policy_name", POLICIES)
def test_a_prompt_is_done_before_the_next_one_starts(policy_name: str) -> None:
    pipe = Pipe(policy_name, most=1, stages=6, max_num_batched_tokens=8)
    for name in "ab":
        pipe.add(name, prompt=20)
    batches = [pipe.scheduler.schedule() for _ in range(6)]
    assert [chunk for batch in batches if batch is not None for chunk in spans(batch)] == [
        *[("a", 0, 8), ("a", 8, 8), ("a", 16, 4)],
        *[("b", 0, 8), ("b", 8, 8), ("b", 16, 4)],
    ]


def test_the_running_take_the_seats_that_the_queue_cannot() -> None:
    """One of two seats is kept for c, but a takes the block that c would need."""
    limits = config(stages=2, num_blocks=3, block_size=4, prefix_cache=False)
    scheduler = Scheduler(limits, policy("mixed"))
    for name, prompt in [("a", 4), ("b", 2)]:
        scheduler.add(Request(name, [1] * prompt, 8))
    for batch in [scheduler.schedule(), scheduler.schedule()]:
        assert batch is not None
        run(scheduler, batch)
    scheduler.add(Request("c", [1, 1], 8))
    batch = scheduler.schedule()
    assert batch is not None
    assert spans(batch) == [("a", 4, 1), ("b", 2, 1)]


def test_priority_goes_before_waiting_time() -> None:
    """Two batches of two are in flight, of three that would take all six."""
    pipe = Pipe("mixed", most=2, stages=3)
    low = [pipe.add(f"low{number}", priority=1) for number in range(2)]
    high = [pipe.add(f"high{number}") for number in range(4)]
    for _ in range(50):
        pipe.turn()
    assert min(request.num_generated for request in high) > 20
    assert max(request.num_generated for request in low) <= 1


def test_no_seat_is_kept_from_a_higher_priority() -> None:
    pipe = Pipe("mixed", most=1, stages=3)
    high = [pipe.add(f"high{number}") for number in range(3)]
    while min(request.num_generated for request in high) == 0:
        pipe.turn()
    low = pipe.add("low", priority=1)
    for _ in range(20):
        pipe.turn()
    assert min(request.num_generated for request in high) > 5
    assert low.status is Status.WAITING


@pytest.mark.parametrize("policy_name", POLICIES)
def test_who_floods_keeps_nobody_waiting(policy_name: str) -> None:
    """The next seat is for whoever has had none for longest: the flood of another makes no difference."""
    pipe = Pipe(policy_name, 1, max_num_seqs=2, max_queued_requests=100)
    flood = [Request(f"flood{n}", [1] * 4, 3, owner="flood") for n in range(60)]
    for request in flood:
        pipe.scheduler.add(request)
    for number in range(10):
        light = Request(f"light{number}", [1] * 4, 3, owner="light")
        before = sum(request.status is Status.FINISHED for request in flood)
        pipe.scheduler.add(light)
        while light.status is Status.WAITING:
            pipe.turn()
        assert sum(request.status is Status.FINISHED for request in flood) - before <= 2
        while light.status is not Status.FINISHED:
            pipe.turn()
    assert pipe.scheduler.waiting > 20
