"""The work of a pool of models: loads and closes engines as it decides, wakes requests, and keeps time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

from corepipe.serving.supervision.pool import GOING, ModelState, Pool, PoolLimits, Ticket


class NotLoadedError(Exception):
    """A model did not load; its cause is the error."""


class ModelHost(Protocol):
    """Loads and closes models.  All calls belong to one event loop."""

    async def load(self, name: str) -> None:
        """Loads a model, or wakes it.  Raises UserError or EngineError."""

    async def close(self, name: str) -> None:
        """Ends the engine of a model; the rest of it stays."""

    def drop(self, name: str) -> None:
        """Frees the rest of a model whose engine has ended."""


class EnginePool:
    """The engines of a server's models, of which not all fit at once.

    failures: why the last load of a model failed, in words: an error would keep what was read.  counts: how
    often what happened.  load_seconds: the time that the last load took.
    """

    def __init__(self, limits: PoolLimits, host: ModelHost, now: Callable[[], float] = monotonic) -> None:
        self.pool = Pool(limits)
        self.failures: dict[str, str] = {}
        self.counts = dict.fromkeys(("load", "failure", "sleep", "unload"), 0)
        self.load_seconds = 1.0
        self._host = host
        self._now = now
        self._futures: dict[Ticket, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._leaving: dict[str, list[asyncio.Future[None]]] = {}

    @property
    def states(self) -> Counter[str]:
        """The number of models by state, of those that are there."""
        none = dict.fromkeys((state.value for state in ModelState if state is not ModelState.UNLOADED), 0)
        return Counter(none | Counter(slot.state.value for slot in self.pool.slots.values()))

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(len(slot.waiting) for slot in self.pool.slots.values())

    @asynccontextmanager
    async def using(self, name: str, nbytes: int = 0) -> AsyncIterator[None]:
        """Runs the body of `async with` once the model is loaded; it does not leave before the end of that.

        Raises NotLoadedError, and as `Pool.ask`.
        """
        ticket = self.pool.ask(name, nbytes, self._now())
        try:
            if not ticket.granted:
                future = self._futures[ticket] = asyncio.get_running_loop().create_future()
                self._turn()
                await future
            yield
        finally:
            self._futures.pop(ticket, None)
            self.pool.leave(ticket, self._now())
            if self.pool.is_settled(name):
                self._sleep_later()
            else:
                self._turn()

    def started(self, name: str) -> None:
        """Notes that a model has loaded that is loaded at the start."""
        self.pool.loaded(name, self._now())
        self._turn()

    def lost(self, name: str, error: Exception) -> None:
        """Notes that a model has lost its engine for good: the next request loads it again."""
        self._refuse(name, error)
        self._host.drop(name)
        self._turn()

    async def send_away(self, name: str, becomes: ModelState) -> None:
        """Lets a model sleep or leave once its answers have ended; returns when its engine is closed."""
        while self.pool.state(name) is ModelState.LOADING:
            await self._changed.wait()
        self.pool.send_away(name, becomes)
        if self.pool.state(name) in GOING:
            closed = asyncio.get_running_loop().create_future()
            self._leaving.setdefault(name, []).append(closed)
            self._turn()
            await closed

    def refuse_all(self, error: Exception) -> None:
        """Ends all waits with an error."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Ends all loads, and begins no other."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _turn(self) -> None:
        """Does what the pool decides now."""
        if self._closed:
            return
        step = self.pool.step(self._now())
        for name in step.dropped:
            self.counts["unload"] += 1
            self._host.drop(name)
        for name in step.loads:
            self._begin(self._load(name))
        for name, becomes in step.closes:
            self._begin(self._close(name, becomes))
        for ticket in step.granted:
            future = self._futures.get(ticket)
            if future is not None and not future.done():
                future.set_result(None)
        self._changed.set()
        self._changed.clear()
        self._sleep_later()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, name: str) -> None:
        began = self._now()
        try:
            await self._host.load(name)
        except Exception as error:  # whatever it is: it answers the requests that wait
            self.counts["failure"] += 1
            _log().warning("model %s did not load: %s", name, error)
            self._refuse(name, error)
            self._host.drop(name)
        else:
            self.counts["load"] += 1
            self.failures.pop(name, None)
            self.load_seconds = self._now() - began
            _log().warning("model %s: loaded in %.1f s", name, self.load_seconds)
            self.pool.loaded(name, self._now())
        self._turn()

    async def _close(self, name: str, becomes: ModelState) -> None:
        try:
            await self._host.close(name)
        except Exception:  # the engine's process ends with the server at the latest
            _log().exception("model %s: its engine did not end as it should", name)
        self.pool.closed(name)
        self._tell_of_end(name)
        self.counts["sleep" if becomes is ModelState.SLEEPING else "unload"] += 1
        if self.pool.state(name) is ModelState.UNLOADED:
            self._host.drop(name)
        _log().warning("model %s: its memory is given back (%s)", name, self.pool.state(name).value)
        self._turn()

    def _refuse(self, name: str, error: Exception) -> None:
        self.failures[name] = str(error)
        self._tell_of_end(name)
        for ticket in self.pool.lost(name):
            future = self._futures.get(ticket)
            if future is not None and not future.done():
                refusal = NotLoadedError(name)
                refusal.__cause__ = error
                future.set_exception(refusal)

    def _tell_of_end(self, name: str) -> None:
        """Wakes those that wait until the engine of a model has ended."""
        for future in self._leaving.pop(name, ()):
            if not future.done():
                future.set_result(None)

    def _sleep_later(self) -> None:
        """Sets the timer for the next model that is to sleep; one that is set comes early enough."""
        at = self.pool.next_sleep() if self._timer is None else None
        if at is not None:
            pause = max(0.0, at - self._now())
            self._timer = asyncio.get_running_loop().call_later(pause, self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self._turn()


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
