"""The loop, with a source and a listener, under each clock."""

from __future__ import annotations

from math import inf

import pytest

from corepipe.engine.batch.requests import to_request
from corepipe.engine.batch.runner import Runner
from corepipe.engine.loop.loop import LEAD_SECONDS, Loop, ReplicaRouter
from corepipe.engine.loop.replica import Completed, InFlight, Replica
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.timing.clock import Clock, HostClock, PacedClock, VirtualClock
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from tests.engine.engine_support import VOCAB, FlatCost, scheduler_config, submit
from tests.null_executor import NullExecutor


class Diary:
    """A listener that records the events in order, with the time on the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: list[tuple[str, int, float]] = []
        self.behind: list[float | None] = []

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        self.entries.append(("submitted", replica.number, self._clock.now()))

    def completed(self, replica: Replica, batch: Completed, behind: float | None) -> None:
        self.entries.append(("completed", replica.number, self._clock.now()))
        self.behind.append(behind)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.entries]


def make(clock: Clock, *seconds: float) -> tuple[Loop, Diary]:
    """Makes a replica for each number of seconds, the duration of its steps."""
    replicas = [
        Replica(
            number,
            Scheduler(scheduler_config()),
            Runner(NullExecutor(VOCAB), VOCAB, print),
            Timeline(FlatCost(fixed=fixed), PROFILES["ideal"]),  # type: ignore[arg-type]
            paced=clock.paced,
        )
        for number, fixed in enumerate(seconds)
    ]
    diary = Diary(clock)
    router = ReplicaRouter([replica.scheduler for replica in replicas], margin=2)
    return Loop(replicas, clock, diary, router), diary


def asked(name: str, arrival: float = 0.0, tokens: int = 3) -> Request:
    return to_request(submit(name, max_tokens=tokens), arrival, 0, VOCAB, 256)


class Planned:
    """A source that knows when each request comes, in virtual time."""

    def __init__(self, loop: Loop, clock: VirtualClock, requests: list[Request]) -> None:
        self._loop, self._clock, self._requests = loop, clock, requests

    def next_arrival(self) -> float:
        return self._requests[0].arrival if self._requests else inf

    def receive(self) -> bool:
        coming, event = self.next_arrival(), self._loop.next_event()
        if event <= coming:
            return event < inf
        self._clock.wait_until(coming)
        self._loop.add(self._requests.pop(0))
        return True


def test_a_source_whose_times_are_known_is_played_to_its_end() -> None:
    clock = VirtualClock()
    loop, diary = make(clock, 0.01)
    turns = loop.turns(Planned(loop, clock, [asked("a", tokens=2), asked("b", 0.015, 1), asked("c", 0.5, 1)]))
    for _ in turns:
        pass
    assert [name[0] + str(round(at, 6)) for name, _, at in diary.entries] == [
        "s0.0", "c0.01", "s0.01", "c0.02", "s0.02", "c0.03", "s0.5", "c0.51",
    ]  # fmt: skip
    assert set(diary.behind) == {None}


def test_nothing_is_completed_after_the_next_arrival() -> None:
    clock = VirtualClock()
    loop, diary = make(clock, 0.01)
    loop.add(asked("a"))
    loop.submit()
    loop.complete(until=0.009)
    assert (diary.names(), clock.now()) == (["submitted"], 0.0)
    loop.complete(until=0.01)
    assert (diary.names(), clock.now()) == (["submitted", "completed"], 0.01)


def test_what_is_due_at_the_same_time_is_one_event() -> None:
    clock = VirtualClock()
    loop, diary = make(clock, 0.01, 0.01, 0.03)
    for name in "abc":
        loop.add(asked(name))
    loop.submit()
    loop.complete()
    assert [(name, number) for name, number, _ in diary.entries[3:]] == [("completed", 0), ("completed", 1)]


def test_the_earliest_event_comes_first() -> None:
    clock = VirtualClock()
    loop, diary = make(clock, 0.05, 0.03)
    for name in "ab":
        loop.add(asked(name, tokens=2))
    for _ in range(6):
        loop.submit()
        loop.complete()
    ends = [(number, round(at, 6)) for name, number, at in diary.entries if name == "completed"]
    assert ends == [(1, 0.03), (0, 0.05), (1, 0.06), (0, 0.1)]


def test_a_wait_ends_a_little_before_the_event() -> None:
    now = [0.0]
    loop, diary = make(
        PacedClock(2.0, lambda: now[0], lambda s: now.__setitem__(0, now[0] + max(s, 1e-6))), 0.01
    )
    assert loop.patience() is None
    loop.add(asked("a"))
    loop.submit()
    assert loop.patience() == pytest.approx(0.02 - LEAD_SECONDS)
    loop.complete()
    assert diary.names() == ["submitted"], "it is not due yet"
    now[0] = 0.02 - LEAD_SECONDS / 2
    assert loop.patience() == 0.0
    loop.complete()
    assert diary.names() == ["submitted", "completed"]
    assert now[0] >= 0.02
    assert diary.behind == [0.0]


def test_the_host_never_waits() -> None:
    loop, diary = make(HostClock(), 10.0)
    loop.add(asked("a", tokens=1))
    loop.submit()
    assert loop.patience() == 0.0
    loop.complete()
    assert diary.names() == ["submitted", "completed"]
    loop.submit()
    assert loop.patience() is None


def test_an_abort_finds_its_replica() -> None:
    loop, _ = make(VirtualClock(), 0.01, 0.01)
    for name in "ab":
        loop.add(asked(name))
    assert [loop.abort(name).id for name in "ba"] == ["b", "a"]  # type: ignore[union-attr]
    assert loop.abort("a") is None
