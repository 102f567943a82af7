"""The decisions of a pool of models: which are in memory, which leaves for another, and who waits for what.

Decisions alone, without processes and without a clock of their own.  `Pool.step` returns what is to be done
now; `engine_pool` does it and reports back.

Requests wait for models, and models for room, in the order in which the first request for each came.  The
model at the head gets room from the least recently used one that nobody uses.  If all are in use, the least
recently used one is marked: it takes no new request, its answers end, then it leaves.  So nobody who answers
is interrupted, and nobody waits longer than the answers under way take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

LOADS = 2
"""Models that load at a time: a large one does not hold up all others, and few take memory to load."""


class ModelState(Enum):
    """The states of a model, with the names that clients see."""

    UNLOADED = "unloaded"
    """Nothing of it is in memory."""
    LOADING = "loading"
    """Its engine starts, or wakes."""
    LOADED = "loaded"
    """It takes requests."""
    LEAVING = "leaving"
    """It takes no requests; the answers under way end."""
    CLOSING = "unloading"
    """Its engine ends."""
    SLEEPING = "sleeping"
    """Its tokenizer is in memory; weights and KV cache are not."""


HOLDING = frozenset({ModelState.LOADING, ModelState.LOADED, ModelState.LEAVING, ModelState.CLOSING})
"""States in which a model's weights and KV cache are in memory, or may be."""
GOING = frozenset({ModelState.LEAVING, ModelState.CLOSING})


class PoolFullError(Exception):
    """Too many requests wait for models."""


class TooLargeError(Exception):
    """A model needs more memory than there is for all."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that uses a model, or waits for it.  number: its place in the order of all."""

    number: int
    name: str
    granted: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """A model.  nbytes: of its weights and KV cache.  fixed: it never leaves for another, but may sleep; its
    memory is kept for it, and counts nowhere.

    users: requests that use it.  used_at: when the last one began or ended.  asked: it is to end as
    `becomes`, whoever needs room.
    """

    name: str
    nbytes: int = 0
    fixed: bool = False
    state: ModelState = ModelState.UNLOADED
    becomes: ModelState = ModelState.UNLOADED
    asked: bool = False
    users: int = 0
    used_at: float = 0.0
    waiting: deque[Ticket] = field(default_factory=deque)

    @property
    def holds_memory(self) -> bool:
        return self.state in HOLDING

    @property
    def resting(self) -> bool:
        """Tells whether it could be loaded."""
        return self.state in (ModelState.UNLOADED, ModelState.SLEEPING)


@dataclass(frozen=True, slots=True)
class Step:
    """Work that a pool decides on: tickets that may go on, models to load, and engines to close with the
    state that their models then have.

    dropped: models that slept, and of which nothing is to stay.
    """

    granted: Sequence[Ticket]
    loads: Sequence[str]
    closes: Sequence[tuple[str, ModelState]]
    dropped: Sequence[str]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The limits of a pool.

    models: those that may be in memory or asleep at once, without the fixed ones.  nbytes: memory of them
    all.  waiting: requests that may wait.  idle_seconds: after so long without requests a model sleeps; None:
    none does.
    """

    models: int
    nbytes: int
    waiting: int
    idle_seconds: float | None = None


class Pool:
    """The models of a server, and the requests that use them or wait for them."""

    def __init__(self, limits: PoolLimits) -> None:
        self.slots: dict[str, Slot] = {}
        self.limits = limits
        self._numbers = 0

    def add_fixed(self, name: str) -> None:
        """Adds a model that never leaves, and that is loaded at the start."""
        self.slots[name] = Slot(name, fixed=True, state=ModelState.LOADING)

    def state(self, name: str) -> ModelState:
        """Returns the state of a model."""
        slot = self.slots.get(name)
        return ModelState.UNLOADED if slot is None else slot.state

    def ask(self, name: str, nbytes: int, now: float) -> Ticket:
        """Returns the ticket of a new request for a model of that size, granted if the model is loaded.

        Raises PoolFullError if too many wait, TooLargeError if there is not memory enough for the model.
        """
        slot = self.slots.get(name) or Slot(name, nbytes)
        self._numbers += 1
        ticket = Ticket(self._numbers, name)
        if slot.state is ModelState.LOADED and not slot.waiting:
            self._grant(slot, ticket, now)
            return ticket
        if sum(len(one.waiting) for one in self.slots.values()) >= self.limits.waiting:
            raise PoolFullError
        if slot.nbytes > self.limits.nbytes:
            raise TooLargeError
        self.slots[name] = slot
        slot.waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> None:
        """Ends the use of a model, or the wait for it."""
        slot = self.slots.get(ticket.name)
        if slot is None:
            return  # it was refused
        if ticket.granted:
            slot.users -= 1
            slot.used_at = now
        elif ticket in slot.waiting:
            slot.waiting.remove(ticket)

    def loaded(self, name: str, now: float) -> None:
        """Notes that a model has loaded."""
        slot = self.slots[name]
        slot.state, slot.used_at = ModelState.LOADED, now

    def lost(self, name: str) -> list[Ticket]:
        """Notes that a model did not load, or lost its engine for good; returns the requests that waited."""
        slot = self.slots[name]
        slot.state, slot.asked = ModelState.UNLOADED, False
        refused = list(slot.waiting)
        slot.waiting.clear()
        return refused

    def closed(self, name: str) -> None:
        """Notes that the engine of a model has ended."""
        slot = self.slots[name]
        slot.state, slot.asked = slot.becomes, False

    def send_away(self, name: str, becomes: ModelState) -> None:
        """Asks for a model to sleep, or to leave the memory, once its answers have ended."""
        slot = self.slots.get(name)
        if slot is None:
            return
        if slot.state in (ModelState.LOADED, ModelState.LEAVING):
            slot.state, slot.becomes, slot.asked = ModelState.LEAVING, becomes, True
        elif slot.state is ModelState.CLOSING:
            slot.becomes = becomes
        elif slot.state is ModelState.SLEEPING and becomes is ModelState.UNLOADED:
            slot.state, slot.becomes, slot.asked = ModelState.LEAVING, becomes, True

    def is_settled(self, name: str) -> bool:
        """Tells whether the end of a request for this model changes nothing: nobody waits, and it stays."""
        slot = self.slots.get(name)
        staying = slot is not None and slot.state is ModelState.LOADED
        return staying and not any(one.waiting for one in self.slots.values())

    def step(self, now: float) -> Step:
        """Decides what is to be done now; a step follows every change after which `is_settled` is false."""
        dropped: list[str] = []
        granted = [*self._grants(now)]  # first: a model that has loaded answers before it leaves for the next
        self._sleep_idle(now)
        loads = [*self._make_room(dropped)]
        closes = [(slot.name, slot.becomes) for slot in self.slots.values() if _is_done(slot)]
        for name, _ in closes:
            self.slots[name].state = ModelState.CLOSING
        granted += self._grants(now)  # to those that need not leave after all
        self._forget_unused()
        return Step(granted, loads, closes, dropped)

    def next_sleep(self) -> float | None:
        """Returns when the next model is to sleep if nobody asks for it; None: none is."""
        if self.limits.idle_seconds is None:
            return None
        idle = [slot.used_at for slot in self.slots.values() if self._is_idle(slot)]
        return min(idle) + self.limits.idle_seconds if idle else None

    def _grants(self, now: float) -> Iterator[Ticket]:
        """Grants the requests that wait for models that are loaded."""
        for slot in self.slots.values():
            while slot.state is ModelState.LOADED and slot.waiting:
                yield self._grant(slot, slot.waiting.popleft(), now)

    def _sleep_idle(self, now: float) -> None:
        seconds = self.limits.idle_seconds
        for slot in self.slots.values():
            if seconds is not None and self._is_idle(slot) and now - slot.used_at >= seconds:
                slot.state, slot.becomes, slot.asked = ModelState.LEAVING, ModelState.SLEEPING, True

    def _make_room(self, dropped: list[str]) -> Iterator[str]:
        """Yields the models that are to load now; marks those that leave for the first one without room."""
        marked = [one for one in self.slots.values() if one.state is ModelState.LEAVING and not one.asked]
        for slot in marked:
            slot.state = ModelState.LOADED
        wanted = sorted(
            (slot for slot in self.slots.values() if slot.waiting and slot.resting),
            key=lambda slot: slot.waiting[0].number,
        )
        for slot in wanted:
            if not self._has_room(slot, going=True):
                self._mark(slot, marked, dropped)
            if not self._has_room(slot, going=False) or self._loading >= LOADS:
                return
            slot.state = ModelState.LOADING
            yield slot.name

    def _mark(self, wanted: Slot, marked: Sequence[Slot], dropped: list[str]) -> None:
        """Marks models until there is room for another one as soon as they are gone."""
        candidates = sorted(
            (slot for slot in self.slots.values() if not slot.fixed and slot is not wanted),
            key=lambda slot: (bool(slot.users), slot not in marked, slot.used_at),
        )
        for slot in candidates:
            if self._has_room(wanted, going=True):
                return
            if slot.state is ModelState.LOADED:
                slot.state, slot.becomes = ModelState.LEAVING, ModelState.UNLOADED
            elif slot.state is ModelState.SLEEPING and self._places(going=True) >= self.limits.models:
                slot.state = ModelState.UNLOADED
                dropped.append(slot.name)

    def _has_room(self, wanted: Slot, *, going: bool) -> bool:
        """Tells whether a model can load now; with `going`, once those that leave are gone."""
        if wanted.fixed:
            return True
        held = sum(slot.nbytes for slot in self.slots.values() if _holds(slot, going=going))
        if held + wanted.nbytes > self.limits.nbytes:
            return False
        return wanted.state is ModelState.SLEEPING or self._places(going=going) < self.limits.models

    def _places(self, *, going: bool) -> int:
        """Counts the places that are taken; with `going`, without those that become free."""
        return sum(
            slot.state is not ModelState.UNLOADED and not (going and _frees_place(slot))
            for slot in self.slots.values()
            if not slot.fixed
        )

    @property
    def _loading(self) -> int:
        return sum(slot.state is ModelState.LOADING for slot in self.slots.values())

    def _forget_unused(self) -> None:
        """Removes the slots of models of which nothing is there, and for which nobody asks."""
        for slot in [*self.slots.values()]:
            if slot.state is ModelState.UNLOADED and not (slot.users or slot.waiting or slot.fixed):
                del self.slots[slot.name]

    def _is_idle(self, slot: Slot) -> bool:
        return slot.state is ModelState.LOADED and not slot.users and not slot.waiting

    def _grant(self, slot: Slot, ticket: Ticket, now: float) -> Ticket:
        ticket.granted = True
        slot.users += 1
        slot.used_at = now
        return ticket


def _is_done(slot: Slot) -> bool:
    """Tells whether the answers of a model that leaves have ended."""
    return slot.state is ModelState.LEAVING and not slot.users


def _holds(slot: Slot, *, going: bool) -> bool:
    return slot.holds_memory and not (going and slot.state in GOING)


def _frees_place(slot: Slot) -> bool:
    return slot.state in GOING and slot.becomes is ModelState.UNLOADED
