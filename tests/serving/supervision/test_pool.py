"""The decisions of a pool of models, over made-up requests, loads and losses, under a clock of the test."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corepipe.serving.supervision.pool import (
    HOLDING,
    LOADS,
    ModelState,
    Pool,
    PoolFullError,
    PoolLimits,
    Slot,
    Step,
    Ticket,
    TooLargeError,
)

NAMES = ("a", "b", "c", "d", "e", "fixed")
SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 9, "fixed": 0}
IDLE = 10.0


class PoolMachine(RuleBasedStateMachine):
    """Engines load, fail, end and are lost in any order; requests come, end and leave at any time.

    asked: the tickets that wait.  running: those that use a model.  loading, closing: what engines do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.asked: list[Ticket] = []
        self.running: list[Ticket] = []
        self.loading: list[str] = []
        self.closing: list[str] = []

    @initialize(models=st.integers(1, 4), nbytes=st.integers(3, 8), fixed=st.booleans())
    def begin(self, models: int, nbytes: int, fixed: bool) -> None:
        self.pool = Pool(PoolLimits(models, nbytes, waiting=8, idle_seconds=IDLE))
        self.names = NAMES if fixed else NAMES[:-1]
        if fixed:
            self.pool.add_fixed("fixed")
            self.loading.append("fixed")

    def slot(self, name: str) -> Slot:
        return self.pool.slots.get(name) or Slot(name)

    def step(self) -> Step:
        """Checks a step's decisions against what was there before it."""
        older = {
            one.name: one.waiting[0].number for one in self.pool.slots.values() if one.waiting and one.resting
        }
        step = self.pool.step(self.now)
        for at, name in enumerate(step.loads):
            assert older.pop(name) < min([*older.values(), float("inf")]), "nobody is overtaken"
            assert at < LOADS
        for name, _ in step.closes:
            assert not any(one.name == name for one in self.running), "nobody who answers is interrupted"
            assert name != "fixed" or self.slot(name).becomes is ModelState.SLEEPING
        for ticket in step.granted:
            self.asked.remove(ticket)
            self.running.append(ticket)
        self.loading += step.loads
        self.closing += [name for name, _ in step.closes]
        return step

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names))
        try:
            ticket = self.pool.ask(name, SIZES[name], self.now)
        except PoolFullError:
            assert len(self.asked) == self.pool.limits.waiting
        except TooLargeError:
            assert SIZES[name] > self.pool.limits.nbytes
        else:
            (self.running if ticket.granted else self.asked).append(ticket)
        self.step()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.pool.leave(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))), self.now)
        self.step()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.pool.leave(self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1))), self.now)
        self.step()

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), works=st.booleans())
    def load(self, data: st.DataObject, works: bool) -> None:
        name = self.loading.pop(data.draw(st.integers(0, len(self.loading) - 1)))
        if works:
            self.pool.loaded(name, self.now)
        else:
            for ticket in self.pool.lost(name):
                self.asked.remove(ticket)
        self.step()

    @precondition(lambda self: self.closing)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.pool.closed(self.closing.pop(data.draw(st.integers(0, len(self.closing) - 1))))
        self.step()

    @rule(data=st.data(), becomes=st.sampled_from([ModelState.SLEEPING, ModelState.UNLOADED]))
    def send_away(self, data: st.DataObject, becomes: ModelState) -> None:
        name = data.draw(st.sampled_from(self.names))
        self.pool.send_away(name, ModelState.SLEEPING if name == "fixed" else becomes)
        self.step()

    @rule(seconds=st.sampled_from([1.0, IDLE / 2, IDLE]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.step()

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "pool"):
            return
        limits = self.pool.limits
        others = [one for one in self.pool.slots.values() if not one.fixed]
        assert sum(one.state is not ModelState.UNLOADED for one in others) <= limits.models
        assert sum(one.nbytes for one in others if one.state in HOLDING) <= limits.nbytes

    @invariant()
    def tickets_are_accounted_for(self) -> None:
        if not hasattr(self, "pool"):
            return
        for one in self.pool.slots.values():
            assert one.users == sum(ticket.name == one.name for ticket in self.running)
            if one.users:
                assert one.state in (ModelState.LOADED, ModelState.LEAVING)
            if one.state is ModelState.LOADED:
                assert not one.waiting
        assert sum(len(one.waiting) for one in self.pool.slots.values()) == len(self.asked)

    @invariant()
    def who_is_idle_sleeps_in_time(self) -> None:
        if hasattr(self, "pool") and (at := self.pool.next_sleep()) is not None:
            assert at > self.now

    def teardown(self) -> None:
        """All who wait are answered once loads and answers end: nobody is forgotten, nothing is stuck."""
        for _ in range(100):
            if not self.asked:
                return
            for ticket in self.running:
                self.pool.leave(ticket, self.now)
            self.running.clear()
            loading, self.loading = self.loading, []
            closing, self.closing = self.closing, []
            for name in loading:
                self.pool.loaded(name, self.now)
            for name in closing:
                self.pool.closed(name)
            self.step()
        raise AssertionError(f"{len(self.asked)} requests wait for ever")


class TestPool(PoolMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def loaded(pool: Pool, name: str, now: float = 0.0, nbytes: int = 1) -> Ticket:
    """Loads a model; returns the ticket of a request that uses it."""
    ticket = pool.ask(name, nbytes, now)
    assert name in pool.step(now).loads
    pool.loaded(name, now)
    assert ticket in pool.step(now).granted
    return ticket


def test_the_least_recently_used_one_leaves_and_never_one_that_answers() -> None:
    pool = Pool(PoolLimits(models=2, nbytes=10, waiting=8))
    busy, done = loaded(pool, "a", now=1), loaded(pool, "b", now=2)
    pool.leave(done, 3)
    pool.ask("c", 1, 4)
    assert pool.step(4).closes == [("b", ModelState.UNLOADED)]  # a is used longer ago, but answers
    pool.closed("b")
    assert pool.step(5).loads == ["c"]
    assert pool.state("a") is ModelState.LOADED
    pool.leave(busy, 6)


def test_of_two_that_answer_one_takes_no_more_until_it_has_made_room() -> None:
    pool = Pool(PoolLimits(models=2, nbytes=10, waiting=8))
    first, _ = loaded(pool, "a", now=1), loaded(pool, "b", now=2)
    pool.ask("c", 1, 3)
    assert pool.step(3).closes == []
    assert pool.state("a") is ModelState.LEAVING
    assert not pool.ask("a", 1, 4).granted
    assert pool.ask("b", 1, 4).granted
    pool.leave(first, 5)
    assert pool.step(5).closes == [("a", ModelState.UNLOADED)]


def test_one_that_was_marked_stays_if_room_comes_otherwise() -> None:
    pool = Pool(PoolLimits(models=2, nbytes=10, waiting=8))
    _, second = loaded(pool, "a", now=1), loaded(pool, "b", now=2)
    pool.ask("c", 1, 3)
    pool.step(3)
    assert pool.state("a") is ModelState.LEAVING
    pool.leave(second, 4)
    assert pool.step(4).closes == [("b", ModelState.UNLOADED)]
    assert pool.state("a") is ModelState.LOADED
    assert pool.ask("a", 1, 5).granted


def test_memory_decides_as_the_number_does() -> None:
    pool = Pool(PoolLimits(models=4, nbytes=10, waiting=8))
    for at, name in enumerate("abc"):
        pool.leave(loaded(pool, name, now=at, nbytes=3), at)
    pool.ask("d", 6, 5)
    assert pool.step(5).closes == [("a", ModelState.UNLOADED), ("b", ModelState.UNLOADED)]
    with pytest.raises(TooLargeError):
        pool.ask("e", 11, 5)


def test_one_that_sleeps_holds_no_memory_and_gives_up_its_place_first() -> None:
    pool = Pool(PoolLimits(models=2, nbytes=2, waiting=8, idle_seconds=IDLE))
    pool.leave(loaded(pool, "a"), 0)
    assert pool.next_sleep() == IDLE
    assert pool.step(IDLE).closes == [("a", ModelState.SLEEPING)]
    pool.closed("a")
    loaded(pool, "b", now=IDLE, nbytes=2)
    pool.ask("c", 1, IDLE)
    step = pool.step(IDLE)
    assert (step.dropped, step.loads) == (["a"], [])  # b has the memory
    assert pool.state("b") is ModelState.LEAVING


def settled(pool: Pool, now: float) -> list[Ticket]:
    """Does at once what the pool decides, until that is nothing; returns the tickets that were granted."""
    granted: list[Ticket] = []
    while (step := pool.step(now)) and (step.loads or step.closes or step.granted):
        for name in step.loads:
            pool.loaded(name, now)
        for name, _ in step.closes:
            pool.closed(name)
        granted += step.granted
    return granted


@pytest.mark.parametrize("models", [1, 2, 3])
def test_nobody_starves_beside_models_that_are_never_idle(models: int) -> None:
    """Answers take five turns and overlap: a request waits at most for those of the models before its own."""
    random, pool = Random(models), Pool(PoolLimits(models, 100, waiting=10_000))
    running: deque[tuple[int, Ticket]] = deque()
    waiting: dict[Ticket, int] = {}
    longest = 0
    for turn in range(1000):
        for name in random.sample("abcdef", 2):
            ticket = pool.ask(name, 1, turn)
            waiting[ticket] = turn
            if ticket.granted:
                running.append((turn + 5, ticket))
        while running and running[0][0] <= turn:
            pool.leave(running.popleft()[1], turn)
        running.extend((turn + 5, ticket) for ticket in settled(pool, turn))
        waiting = {ticket: since for ticket, since in waiting.items() if not ticket.granted}
        longest = max([longest, *(turn - since for since in waiting.values())])
    assert 5 <= longest <= 6 * 5 + 5
