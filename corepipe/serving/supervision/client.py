"""The server's side of an engine, wherever the engine runs."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from corepipe.serving.engine.deployment import Deployment
from corepipe.serving.engine.driver import Driver
from corepipe.serving.engine.serve import serve
from corepipe.serving.messages import (
    Abort,
    Command,
    Outputs,
    Progress,
    Ready,
    Shutdown,
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

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:
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


class InProcessClient(StreamingClient):
    """An engine in a thread of this process: for tests, and where a process of its own is not worth it.

    Takes the deployment over and closes it.
    """

    def __init__(self, deployment: Deployment) -> None:
        super().__init__()
        self._deployment = deployment
        self._inbox = QueueInbox()
        self._thread: threading.Thread | None = None

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:  # noqa: ARG002
        """The deployment is loaded already, so that there is no progress to tell."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="engine", daemon=True)
        self._alive = True
        self._thread.start()
        return self._deployment.ready

    async def close(self) -> None:
        if self._thread is not None:
            self._inbox.put(Shutdown())
            await asyncio.to_thread(self._thread.join)
            await asyncio.sleep(0)  # the thread's last words are callbacks of this loop
        self._die()

    def _command(self, command: Command) -> None:
        self._inbox.put(command)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def send(news: Outputs) -> None:
            loop.call_soon_threadsafe(self._take, news)

        driver = Driver(self._deployment, lambda started: send(Outputs(started=started)), self._inbox.wake)

        try:
            serve(driver, self._inbox, send)
        finally:
            driver.close()
            loop.call_soon_threadsafe(self._die)


class QueueInbox:
    """Commands from other threads of this process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def wake(self) -> None:
        """Ends the wait of `receive`, or the next one."""
        self._queue.put(None)

    def receive(self, timeout: float | None) -> list[Command]:
        """See `serve.Inbox`."""
        found: list[Command | None] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._queue.get(timeout != 0.0, timeout))
            while True:
                found.append(self._queue.get_nowait())
        return [command for command in found if command is not None]


def _ignore(_news: object) -> None:
    """For those who want no news."""
