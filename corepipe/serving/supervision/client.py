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
    """What a server needs of an engine.  All of it belongs to one event loop."""

    on_stats: Callable[[Stats], None]
    """Told of every Stats, once."""

    on_ready: Callable[[Ready], None]
    """Told when an engine has taken the place of a lost one."""

    on_failure: Callable[[Exception], None]
    """Told once, where the engine has been ready, is lost, and does not come back: why."""

    async def start(self, progress: Callable[[LoadProgress], None] | None = None) -> Ready:
        """Loads.  Raises UserError where the config is at fault, EngineError where the engine is."""

    def submit(self, submit: Submit) -> OutputStream:
        """Hands a request over; refusals come as its first and last Output.

        Raises ValueError where a request of that id is still open.
        """

    def abort(self, ids: Sequence[str]) -> None:
        """Gives requests up; each open stream ends with finish_reason "abort"."""

    def abort_all(self) -> None:
        """Gives up all requests that are open."""

    @property
    def stats(self) -> Sequence[Stats]:
        """The latest of each replica, by replica."""

    @property
    def restarts(self) -> Mapping[str, int]:
        """Engines that were lost and replaced, by reason."""

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]:
        """What a fleet did not take, by machine (or "front") and reason; none without a fleet."""

    @property
    def alive(self) -> bool:
        """Whether the engine has loaded and can go on."""

    @property
    def restarting(self) -> bool:
        """Whether an engine was lost and another one is loading."""

    async def close(self) -> None:
        """Ends the engine; open streams end first."""


class StreamingClient(ABC):
    """What the clients share: the way from events to streams."""

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
    """For those who want no news."""
