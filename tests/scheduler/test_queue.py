from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.scheduler.queue import QueueFull, Rank, WaitingQueue
from corepipe.scheduler.request import Request, Status


def make(name: str, tokens: int = 1) -> Request:
    return Request(name, [0] * tokens, max_tokens=1)


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
        queue.push(request, Rank(priority, arrival, n))
    assert order(queue) == [str(n) for *_, n in sorted(pushed)]
    assert (queue.peek().id if pushed else queue.peek()) == (str(min(pushed)[-1]) if pushed else None)


def test_remove_takes_that_request_alone():
    queue = WaitingQueue(10, 100)
    requests = [make(str(n), n + 1) for n in range(4)]
    for n, request in enumerate(requests):
        queue.push(request, Rank(0, 0.0, n))
    queue.remove(requests[2], Rank(0, 0.0, 2))
    assert order(queue) == ["0", "1", "3"]
    assert (len(queue), queue.num_tokens) == (3, 7)


def test_bound_by_requests_spares_the_preempted():
    queue = WaitingQueue(1, 100)
    queue.push(make("a"), Rank(0, 0.0, 0))
    with pytest.raises(QueueFull, match="max_queued_requests"):
        queue.push(make("b"), Rank(0, 0.0, 1))
    preempted = make("c")
    preempted.status = Status.PREEMPTED
    queue.push(preempted, Rank(0, 9.0, 2))
    assert order(queue) == ["c", "a"]


def test_bound_by_tokens():
    queue = WaitingQueue(10, 5)
    queue.push(make("a", 3), Rank(0, 0.0, 0))
    with pytest.raises(QueueFull, match="max_queued_tokens = 5"):
        queue.push(make("b", 3), Rank(0, 0.0, 1))
    queue.push(make("c", 2), Rank(0, 0.0, 2))
    assert (len(queue), queue.num_tokens) == (2, 5)
