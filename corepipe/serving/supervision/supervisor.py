"""Engines in child processes, one after the other: where one is lost the next is started, until that makes no
sense, and its requests continue there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Protocol

from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import LoadAdapter
from corepipe.engine.messages import Command, LoadProgress, Outputs, Ready, Stats
from corepipe.errors import UserError
from corepipe.serving.supervision.adapters import AdapterLoads
from corepipe.serving.supervision.child import EngineChild, EngineEnd, HangLimits
from corepipe.serving.supervision.client import ENGINE_DIED, JournaledClient
from corepipe.serving.supervision.engine_process import ENGINE_COMMAND, EngineError, EngineProcess
from corepipe.serving.supervision.stats import idle, total

MOST_FAILED_LOADS = 10
"""Engines in a row that may fail to load; after them another one would fail, too.  One that was killed while
it loaded does not count."""

PROVEN_SECONDS = 2.0
"""An engine that has lived for this time, or has computed for a request, counts as one that works."""

FIRST_PAUSE, MOST_PAUSE = 0.1, 3.0
"""Seconds before the third engine in a row after engines that did not work, and the most; twice as long
before each further one."""

LEAST_LOAD_SECONDS = 10.0
"""A new engine may load for this time without reporting progress, or for `LOAD_RATIO` times as long as
the first one needed: see `HangLimits`."""

LOAD_RATIO = 3.0


class EngineOwner(Protocol):
    """The owner of the engines, which is notified of their losses and replacements."""

    def take(self, news: Outputs) -> None:
        """Takes Outputs of the current engine."""

    def lost(self, end: EngineEnd) -> None:
        """Takes the loss of the engine; another one will be started."""

    def not_loaded(self) -> None:
        """Takes the failure of a replacement; another one is tried."""

    def replaced(self, ready: Ready) -> None:
        """Takes the success of a replacement for a lost engine."""

    def gave_up(self, error: Exception) -> None:
        """Takes the error after which no other engine is started."""


class SpareProcess:
    """A process that has done its imports, for whichever of several models needs an engine next.

    `command`: see `EngineChild`.
    """

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._command = command
        self._process: EngineProcess | None = None

    def prepare(self) -> None:
        """Starts the process, unless there is one.  Raises EngineError."""
        if self._process is None or not self._process.runs:
            self._process = EngineProcess(self._command)

    def take(self) -> EngineProcess | None:
        """Returns the process if it runs, to one caller alone."""
        process, self._process = self._process, None
        return process if process is not None and process.runs else None

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            with self._process:
                self._process = None


class Succession:
    """The current engine and a spare one, ready to be started.

    `command`, `tells_prefixes`: see `EngineChild`.  `called`: the name of the engine in the log.  `first`:
    the process of the first engine, where it has been made.  `shared`: the spare, if others share it.
    `adapters`: those that the next engine loads, see `Start`.
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
        shared: SpareProcess | None = None,
    ) -> None:
        self.command = command
        self.spare: EngineChild | None = None
        self.adapters: list[LoadAdapter] | None = None
        self._config = config
        self._owner = owner
        self._called = called
        self._tells_prefixes = tells_prefixes
        self._shared = shared
        self._child = self._engine(0, first)
        self._epoch = 0
        self._begun = False
        self._fruitless = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The number of the current engine."""
        return self._epoch

    @property
    def child(self) -> EngineChild:
        """The current engine."""
        return self._child

    async def start(self, progress: Callable[[LoadProgress], None]) -> Ready:
        """Loads the first engine, or the next one after `stop`.

        Raises UserError or EngineError, whichever is at fault.
        """
        began = monotonic()
        if self._begun or self._shared is not None:
            self._child = self._next()
        self._begun = True
        ready = await self._child.start(self._config, progress, adapters=self.adapters)
        self.prepare()
        load_seconds = max(LEAST_LOAD_SECONDS, LOAD_RATIO * (monotonic() - began))
        self._task = asyncio.create_task(self._supervise(HangLimits(load_seconds, load_seconds)))
        return ready

    def send(self, command: Command) -> None:
        """Sends a command to the current engine."""
        self._child.send(command)

    def prove(self) -> None:
        """Notes that the engine works: it has computed something."""
        self._fruitless = 0

    async def stop(self) -> None:
        """Ends the engine, which first sends its last Outputs; the spare waits for another `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._child.close()

    async def close(self) -> None:
        """Ends the spare and the engine, which first sends its last Outputs."""
        if self.spare is not None:
            await self.spare.kill()
        await self.stop()

    def prepare(self) -> None:
        """Starts a spare engine: its imports are more than half of the time until a lost one is replaced."""
        with contextlib.suppress(EngineError):  # it is made when it is needed; an error is reported then
            if self._shared is not None:
                self._shared.prepare()
                return
            if self.spare is None or not self.spare.waits:
                self.spare = self._engine(self._epoch + 1)
                self.spare.spawn()

    async def _supervise(self, loading: HangLimits) -> None:
        """Replaces each engine that is lost, until a replacement fails for good."""
        try:
            while True:
                born = monotonic()
                end = await self._child.ended()
                if monotonic() - born >= PROVEN_SECONDS:
                    self._fruitless = 0
                self._owner.lost(end)
                await self._replace(loading)
        except Exception as error:  # whatever the error is: without an engine there is nothing to serve
            self._owner.gave_up(error)

    async def _replace(self, loading: HangLimits) -> None:
        """Starts engines until one has loaded.  Raises UserError or EngineError where none does."""
        failed = 0
        while True:
            await self._pause()
            self._child = self._next()
            try:
                ready = await self._child.start(self._config, _ignore, loading, self.adapters)
                break
            except (UserError, EngineError) as error:
                await self._child.kill()
                self._owner.not_loaded()
                _log().warning("the replacement of %s did not load: %s", self._called, error)
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
        """Returns the spare engine, or a new one where that is gone."""
        self._epoch += 1
        if self._shared is not None:
            return self._engine(self._epoch, self._shared.take())
        spare, self.spare = self.spare, None
        return spare if spare is not None and spare.waits else self._engine(self._epoch)

    def _engine(self, epoch: int, made: EngineProcess | None = None) -> EngineChild:
        return EngineChild(
            self.command, epoch, self._owner.take, tells_prefixes=self._tells_prefixes, engine=made
        )

    async def _pause(self) -> None:
        """Waits before a replacement, longer with each engine in a row that did not work."""
        self._fruitless += 1
        if self._fruitless > 2:
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** min(self._fruitless - 3, 10), MOST_PAUSE))


class ProcessClient(JournaledClient):
    """The engine of a server, in one child process after another; see `engine.process`.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  `command` starts a
    child; see `EngineChild`.  `called`: the name of the engine in the log.  `first`: the process of the first
    engine, where it has been made.  `shared`: the spare process, if it is for several models.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        queue_seconds: float | None = None,
        called: str = "the engine",
        first: EngineProcess | None = None,
        shared: SpareProcess | None = None,
    ) -> None:
        super().__init__(config, queue_seconds)
        self._alive = False
        self._called = called
        self._engines = Succession(config, command, self, called, first=first, shared=shared)
        self._restarts: Counter[str] = Counter()
        self._before: dict[int, Stats] = {}
        self._restarting = False
        self._adapters = AdapterLoads(self._command)

    @property
    def adapters(self) -> AdapterLoads:
        return self._adapters

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def restarting(self) -> bool:
        return self._restarting

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        return {}

    @property
    def restarts(self) -> Mapping[str, int]:
        return self._restarts

    @property
    def engine_pid(self) -> int | None:
        """The id of the engine's process; None before the start."""
        return self._engines.child.pid

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        ready = await self._engines.start(progress or _ignore)
        self._alive = True
        if self._engines.adapters is None:
            self._adapters.note(ready.adapters)
        else:
            self._adapters.replaced(ready.adapters)
        self._watch_queue()
        return ready

    async def sleep(self) -> None:
        await self._leave_queue()
        await self._engines.stop()
        self._alive = self._restarting = False
        self._streams.fail(ENGINE_DIED)
        self._keep_counters()
        self._keep_adapters()

    async def close(self) -> None:
        await self._leave_queue()
        await self._engines.close()
        self._alive = self._restarting = False
        self._streams.fail(ENGINE_DIED)

    def take(self, news: Outputs) -> None:
        """Implements `EngineOwner`."""
        if news.outputs:
            self._engines.prove()
        self._take(news)
        if news.adapters:
            self._adapters.take(news.adapters)

    def lost(self, end: EngineEnd) -> None:
        """Implements `EngineOwner`."""
        self._alive, self._restarting = False, True
        self._restarts[end.reason] += 1
        self._finish(self._journal.lose_engine(broke=end.reason != "killed"))
        self._keep_counters()
        self._keep_adapters()
        kept = len(self._journal)
        _log().warning("%s %s; %d open requests continue on its replacement", self._called, end.words, kept)

    def not_loaded(self) -> None:
        """Implements `EngineOwner`."""
        self._restarts["load"] += 1

    def replaced(self, ready: Ready) -> None:
        """Implements `EngineOwner`."""
        self._alive, self._restarting = True, False
        self.on_ready(ready)
        for submit in self._journal.submits():
            self._command(submit)
        self._adapters.replaced(ready.adapters)

    def gave_up(self, error: Exception) -> None:
        """Implements `EngineOwner`."""
        self._alive = self._restarting = False
        self._streams.fail(ENGINE_DIED)
        self._adapters.lose_engine()
        self.on_failure(error)

    def _command(self, command: Command) -> None:
        self._engines.send(command)

    def _keep_counters(self) -> None:
        """Lets the counters of the next engine continue those of this one, which is gone."""
        self._before = dict(self._stats)
        for stats in self._before.values():
            super()._show(idle(stats))

    def _keep_adapters(self) -> None:
        """Lets the next engine load the adapters of this one, which is gone."""
        self._adapters.lose_engine()
        if self._config.lora_slots:
            used = {one.digest for refs in self.adapters_in_use for one in refs}
            self._engines.adapters = self._adapters.again(used)

    def _show(self, stats: Stats) -> None:
        before = self._before.get(stats.replica)
        super()._show(stats if before is None else total(before, stats))


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _ignore(_news: object) -> None:
    """Ignores a message."""
