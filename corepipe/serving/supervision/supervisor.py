"""An engine in a child process, which is replaced when it is lost; its requests continue on the next one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Command, LoadProgress, Outputs, Ready, Stats
from corepipe.serving.supervision.child import EngineEnd
from corepipe.serving.supervision.engine_process import ENGINE_COMMAND, EngineProcess
from corepipe.serving.supervision.journaled import JournaledClient
from corepipe.serving.supervision.stats import idle, total
from corepipe.serving.supervision.succession import Succession


class ProcessClient(JournaledClient):
    """The engine of a server, in one child process after another; see `engine.process`.

    `queue_seconds`: the longest that a request waits before anything is computed for it.  `command` starts a
    child; see `EngineChild`.  `called`: the name of the engine in the log.  `first`: the process of the first
    engine, where it has been made.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Sequence[str] = ENGINE_COMMAND,
        queue_seconds: float | None = None,
        called: str = "the engine",
        first: EngineProcess | None = None,
    ) -> None:
        super().__init__(config, queue_seconds)
        self._called = called
        self._engines = Succession(config, command, self, called, first=first)
        self._restarts: Counter[str] = Counter()
        self._before: dict[int, Stats] = {}
        self._restarting = False

    @property
    def restarting(self) -> bool:
        return self._restarting

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
        self._watch_queue()
        return ready

    async def close(self) -> None:
        await self._leave_queue()
        await self._engines.close()
        self._restarting = False
        self._die()

    def take(self, news: Outputs) -> None:
        """Implements `succession.EngineOwner`."""
        if news.outputs:
            self._engines.prove()
        self._take(news)

    def lost(self, end: EngineEnd) -> None:
        """Implements `succession.EngineOwner`."""
        self._alive, self._restarting = False, True
        self._restarts[end.reason] += 1
        self._before = dict(self._stats)
        self._finish(self._journal.lose_engine(broke=end.reason != "killed"))
        for stats in self._before.values():
            super()._show(idle(stats))
        kept = len(self._journal)
        _log().warning("%s %s; %d open requests continue on its replacement", self._called, end.words, kept)

    def not_loaded(self) -> None:
        """Implements `succession.EngineOwner`."""
        self._restarts["load"] += 1

    def replaced(self, ready: Ready) -> None:
        """Implements `succession.EngineOwner`."""
        self._alive, self._restarting = True, False
        self.on_ready(ready)
        for submit in self._journal.submits():
            self._command(submit)

    def gave_up(self, error: Exception) -> None:
        """Implements `succession.EngineOwner`."""
        self._restarting = False
        self._die()
        self.on_failure(error)

    def _command(self, command: Command) -> None:
        self._engines.send(command)

    def _show(self, stats: Stats) -> None:
        before = self._before.get(stats.replica)
        super()._show(stats if before is None else total(before, stats))


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _ignore(_news: object) -> None:
    """Ignores a message."""
