"""Engines that follow each other: where one is lost the next is started, until that makes no sense."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Command, LoadProgress, Outputs, Ready
from corepipe.errors import UserError
from corepipe.serving.supervision.child import EngineChild, EngineEnd
from corepipe.serving.supervision.engine_process import EngineError, EngineProcess
from corepipe.serving.supervision.watchdog import HangLimits

MOST_FAILED_LOADS = 10
"""Engines in a row that may fail to load; then another one would, too.  One that somebody killed while it
loaded tells nothing of the next."""

PROVEN_SECONDS = 2.0
"""An engine that has lived for so long, or has computed for a request, was good for something."""

FIRST_PAUSE, MOST_PAUSE = 0.1, 3.0
"""Seconds before the third engine in a row after such as were good for nothing; twice as long before each one
more."""

LEAST_LOAD_SECONDS = 10.0
"""A new engine may work on its load for so long without telling of progress, or `LOAD_RATIO` times as long as
the first one needed: see `HangLimits`."""

LOAD_RATIO = 3.0


class EngineOwner(Protocol):
    """Who has the engines, and is told what becomes of them."""

    def take(self, news: Outputs) -> None:
        """The engine of the moment says something."""

    def lost(self, end: EngineEnd) -> None:
        """The engine is gone; another one will be started."""

    def not_loaded(self) -> None:
        """One that was to take its place has failed; it is tried again."""

    def replaced(self, ready: Ready) -> None:
        """Another engine has taken the place of a lost one."""

    def gave_up(self, error: Exception) -> None:
        """No engine will come any more."""


class Succession:
    """The engine of the moment and, ready to be started, its spare.

    `command` starts a child, and what it tells; see `EngineChild`.  `called`: what the log calls the engine.
    `first`: the process of the first, where it has been made.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str],
        owner: EngineOwner,
        called: str,
        *,
        tells_prefixes: bool = False,
        first: EngineProcess | None = None,
    ) -> None:
        self.command = command
        self.spare: EngineChild | None = None
        self._config = config
        self._owner = owner
        self._called = called
        self._tells_prefixes = tells_prefixes
        self._child = self._engine(0, first)
        self._epoch = 0
        self._fruitless = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The number of the engine of the moment."""
        return self._epoch

    @property
    def child(self) -> EngineChild:
        """The engine of the moment."""
        return self._child

    async def start(self, progress: Callable[[LoadProgress], None]) -> Ready:
        """Loads the first.  Raises UserError or EngineError, whichever is at fault."""
        began = monotonic()
        ready = await self._child.start(self._config, progress)
        self.prepare()
        load_seconds = max(LEAST_LOAD_SECONDS, LOAD_RATIO * (monotonic() - began))
        self._task = asyncio.create_task(self._supervise(HangLimits(load_seconds, load_seconds)))
        return ready

    def send(self, command: Command) -> None:
        """For the engine of the moment."""
        self._child.send(command)

    def prove(self) -> None:
        """The engine has computed something: it was good for something."""
        self._fruitless = 0

    async def close(self) -> None:
        """Ends the engine, which first says its last news; the spare, too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.spare is not None:
            await self.spare.kill()
        await self._child.close()

    def prepare(self) -> None:
        """A spare engine, with its imports done: more than half of the time until a lost one is replaced."""
        with contextlib.suppress(EngineError):  # it is made when it is needed, or that is told then
            self.spare = self._engine(self._epoch + 1)
            self.spare.spawn()

    async def _supervise(self, loading: HangLimits) -> None:
        """Replaces each engine that is lost, until that makes no sense."""
        try:
            while True:
                born = monotonic()
                end = await self._child.ended()
                if monotonic() - born >= PROVEN_SECONDS:
                    self._fruitless = 0
                self._owner.lost(end)
                await self._replace(loading)
        except Exception as error:  # whatever it is: without an engine there is nothing to serve
            self._owner.gave_up(error)

    async def _replace(self, loading: HangLimits) -> None:
        """Starts engines until one has loaded.  Raises UserError or EngineError where none does."""
        failed = 0
        while True:
            await self._pause()
            self._child = self._next()
            try:
                ready = await self._child.start(self._config, _ignore, loading)
                break
            except (UserError, EngineError) as error:
                await self._child.kill()
                self._owner.not_loaded()
                _log().warning("%s did not load again: %s", self._called, error)
                failed += not self._child.killed
                if failed >= MOST_FAILED_LOADS and isinstance(error, EngineError):
                    words = f"{failed} engines in a row did not load; the last: {error}"
                    raise EngineError(words) from error
                if failed >= MOST_FAILED_LOADS:
                    raise
                self.prepare()
        self.prepare()
        self._owner.replaced(ready)
        _log().warning("%s is back, loaded in %.1f s", self._called, ready.load_seconds)

    def _next(self) -> EngineChild:
        """The spare engine, or a new one where that is gone."""
        self._epoch += 1
        spare, self.spare = self.spare, None
        return spare if spare is not None and spare.waits else self._engine(self._epoch)

    def _engine(self, epoch: int, made: EngineProcess | None = None) -> EngineChild:
        return EngineChild(
            self.command, epoch, self._owner.take, tells_prefixes=self._tells_prefixes, engine=made
        )

    async def _pause(self) -> None:
        """Longer with each engine in a row that was good for nothing."""
        self._fruitless += 1
        if self._fruitless > 2:
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** min(self._fruitless - 3, 10), MOST_PAUSE))


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _ignore(_news: object) -> None:
    """For those who want no news."""
