"""The server's side of an engine, wherever the engine runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from corepipe.engine.messages import (
    Abort,
    Command,
    LoadProgress,
    Outputs,
    Ready,
    Stats,
    Submit,
)
from corepipe.serving.supervision.streams import OutputStream, Streams, failed_output

ENGINE_DIED = "engine died"


class EngineClient(Protocol):
    """The interface of an engine for a server.  All calls belong to one event loop."""

    on_stats: Callable[[Stats], None]
    """Called with every Stats, once."""

    on_ready: Callable[[Ready], None]
    """Called when an engine has taken the place of a lost one."""

    on_failure: Callable[[Exception], None]
    """Called once with the reason, where an engine that was ready is lost and does not come back."""

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        """Loads.  Raises UserError where the config is at fault, EngineError where the engine is."""

    def submit(self, submit: Submit) -> OutputStream:
        """Submits a request; a refusal comes as its first and last Output.

        Raises ValueError where a request of that id is still open.
        """

    def abort(self, ids: Sequence[str]) -> None:
        """Aborts requests; each open stream ends with finish_reason "abort"."""

    def abort_all(self) -> None:
        """Aborts all open requests."""

    @property
    def stats(self) -> Sequence[Stats]:
        """The latest Stats of each replica, by replica."""

    @property
    def restarts(self) -> Mapping[str, int]:
        """Counts of engines that were lost and replaced, by reason."""

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """Counts of what a fleet refused, by machine (or "front") and reason; none without a fleet."""

    @property
    def alive(self) -> bool:
        """Tells whether the engine has loaded and works."""

    @property
    def restarting(self) -> bool:
        """Tells whether an engine was lost and another one is loading."""

    async def close(self) -> None:
        """Ends the engine; open streams end first."""


class StreamingClient(ABC):
    """The shared part of the clients: events become items of streams."""

    def __init__(self) -> None:
        self.on_stats: Callable[[Stats], None] = _ignore
        self.on_ready: Callable[[Ready], None] = _ignore
        self.on_failure: Callable[[Exception], None] = _ignore
        self._streams = Streams()
        self._stats: dict[int, Stats] = {}
        self._alive = False

    @property
    def alive(self) -> bool:
        return self._alive

    @property
    def restarting(self) -> bool:
        return False

    @property
    def restarts(self) -> Mapping[str, int]:
        return {}

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        return {}

    @property
    def stats(self) -> list[Stats]:
        return [self._stats[replica] for replica in sorted(self._stats)]

    def submit(self, submit: Submit) -> OutputStream:
        stream = self._streams.open(submit.id, self.abort)
        if self._alive:
            self._command(submit)
        else:
            self._streams.push([failed_output(submit.id, ENGINE_DIED)])
        return stream

    def abort(self, ids: Sequence[str]) -> None:
        if self._alive:
            self._command(Abort(list(ids)))

    def abort_all(self) -> None:
        self.abort(self._streams.ids)

    @abstractmethod
    def _command(self, command: Command) -> None:
        """Sends a command to a living engine."""

    def _take(self, news: Outputs) -> None:
        self._streams.start(started.id for started in news.started)
        self._streams.push(news.outputs)
        if news.stats is not None:
            self._show(news.stats)

    def _show(self, stats: Stats) -> None:
        self._stats[stats.replica] = stats
        self.on_stats(stats)

    def _die(self) -> None:
        self._alive = False
        self._streams.fail(ENGINE_DIED)


def _ignore(_news: object) -> None:
    """Ignores a message."""
