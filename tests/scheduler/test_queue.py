from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.request import Rank, Request, Status
from corepipe.scheduler.running import QueueFull, WaitingQueue


def make(name: str, tokens: int = 1, owner: str = "") -> Request:
    return Request(name, [0] * tokens, max_tokens=1, owner=owner)


def push(queue: WaitingQueue, request: Request, rank: Rank) -> None:
    request.rank = rank
    queue.push(request)


def order(queue: WaitingQueue) -> list[str]:
    return [request.id for request in queue]


@given(st.lists(st.tuples(st.integers(-2, 2), st.floats(0, 3), st.booleans()), max_size=30), st.randoms())
def test_order_is_priority_then_preempted_then_arrival_then_number(entries, rng):
    queue = WaitingQueue(100, 1000)
    pushed = [
        (priority, not preempted, arrival, n) for n, (priority, arrival, preempted) in enumerate(entries)
    ]
    for priority, fresh, arrival, n in rng.sample(pushed, len(pushed)):
        request = make(str(n))
        request.status = Status.WAITING if fresh else Status.PREEMPTED
        push(queue, request, Rank(priority, arrival, n))
    assert order(queue) == [str(n) for *_, n in sorted(pushed)]
    assert (queue.peek().id if pushed else queue.peek()) == (str(min(pushed)[-1]) if pushed else None)


def test_bound_by_requests_spares_the_preempted():
    queue = WaitingQueue(1, 100)
    push(queue, make("a"), Rank(0, 0.0, 0))
    with pytest.raises(QueueFull, match="max_queued_requests"):
        push(queue, make("b"), Rank(0, 0.0, 1))
    preempted = make("c")
    preempted.status = Status.PREEMPTED
    push(queue, preempted, Rank(0, 9.0, 2))
    assert order(queue) == ["c", "a"]


def test_bound_by_tokens():
    queue = WaitingQueue(10, 5)
    push(queue, make("a", 3), Rank(0, 0.0, 0))
    with pytest.raises(QueueFull, match="max_queued_tokens = 5"):
        push(queue, make("b", 3), Rank(0, 0.0, 1))
    push(queue, make("c", 2), Rank(0, 0.0, 2))
    assert (len(queue), queue.num_tokens) == (2, 5)


def test_who_has_waited_for_nothing_goes_before_who_has_just_had_a_turn():
    queue, numbers = WaitingQueue(100, 1000), count()

    def come(name: str, priority: int = 0) -> None:
        push(queue, make(name, owner=name[0]), Rank(priority, 0.0, next(numbers)))

    def start() -> str:
        request = queue.peek()
        queue.start(request)
        return request.id

    come("a1"), come("a2"), come("a3")
    assert start() == "a1"
    come("b1")
    assert start() == "b1"
    come("b2")
    assert start() == "a2", "b has been idle, but for its turn"
    come("a0", priority=-1)
    assert [start(), start(), start()] == ["a0", "b2", "a3"]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 1), st.booleans()), max_size=30),
    st.randoms(use_true_random=False),
)
def test_the_order_is_that_of_the_starts_and_nobody_has_two_turns_more(entries, rng):
    """Whoever is withdrawn from it."""
    queue = WaitingQueue(100, 1000)
    for n, (owner, priority, fresh) in enumerate(entries):
        request = make(str(n), owner=owner)
        request.status = Status.WAITING if fresh else Status.PREEMPTED
        push(queue, request, Rank(priority, 0.0, n))
    for request in rng.sample(list(queue), len(queue) // 4):
        queue.remove(request)
    expected, started = list(queue), []
    while (request := queue.peek()) is not None:
        queue.start(request)
        started.append(request)
    assert started == expected
    assert len(queue) == queue.num_tokens == 0
    for priority in (0, 1):
        turns = [r.owner for r in started if r.status is Status.WAITING and r.rank.priority == priority]
        for at, owner in enumerate(turns):
            for other in set(turns[at:]) - {owner}:
                since = "".join(turns[: at + 1]).rpartition(other)[-1]
                assert since.count(owner) == 1, "the other one waits, and it had two turns"
