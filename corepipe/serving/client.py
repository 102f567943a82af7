"""The server's side of an engine, wherever the engine runs."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from corepipe.errors import UserError
from corepipe.serving.config import EngineConfig
from corepipe.serving.deployment import Deployment
from corepipe.serving.driver import Driver
from corepipe.serving.frames import FrameError, encode_frame, event_decoder
from corepipe.serving.loop import serve
from corepipe.serving.messages import (
    Abort,
    Command,
    Event,
    Outputs,
    Progress,
    Ready,
    Shutdown,
    Stats,
    Submit,
)
from corepipe.serving.streams import OutputStream, Streams, failed_output

ENGINE_DIED = "engine died"
ENGINE_COMMAND = (sys.executable, "-P", "-m", "corepipe.serving.process")
CLOSE_SECONDS = 5.0
"""How long an engine may take to end before it is killed."""


class EngineError(RuntimeError):
    """The engine failed through no fault of the user's."""


class EngineClient(Protocol):
    """What a server needs of an engine.  All of it belongs to one event loop."""

    on_stats: Callable[[Stats], None]
    """Told of every Stats, once."""

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
    def alive(self) -> bool:
        """Whether the engine has loaded and can go on."""

    async def close(self) -> None:
        """Ends the engine; open streams end first."""


class _Client(ABC):
    """What the clients share: the way from events to streams."""

    def __init__(self) -> None:
        self.on_stats: Callable[[Stats], None] = _ignore
        self._streams = Streams()
        self._stats: dict[int, Stats] = {}
        self._alive = False

    @property
    def alive(self) -> bool:
        return self._alive

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
        self._streams.push(news.outputs)
        if news.stats is not None:
            self._stats[news.stats.replica] = news.stats
            self.on_stats(news.stats)

    def _die(self) -> None:
        self._alive = False
        self._streams.fail(ENGINE_DIED)


class ProcessClient(_Client):
    """An engine in a child process, which lives as long as this client; see `serving.process`.

    `command` starts the child; the number of the file descriptor to talk over is added to it.
    """

    def __init__(self, config: EngineConfig, command: Sequence[str] = ENGINE_COMMAND) -> None:
        super().__init__()
        self._config = config
        self._program = command
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: _Connection | None = None

    async def start(self, progress: Callable[[Progress], None] | None = None) -> Ready:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            command = [*self._program, str(fd)]
            # In this thread: on Linux the child ends with the thread that made it.  In a session of its own:
            # a terminal's Ctrl-C is ours to answer, from the child's first import on.
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=[fd], stdin=subprocess.DEVNULL, start_new_session=True
            )
        connection = _Connection(loop, self._take, self._die, progress or _ignore)
        await loop.create_unix_connection(lambda: connection, sock=ours)
        self._connection = connection
        connection.send(self._config.model_dump(mode="json"))
        ready = await connection.ready
        self._alive = not connection.lost.is_set()
        return ready

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.send(Shutdown())
            if self._process is not None and not (self._alive or self._connection.lost.is_set()):
                self._process.terminate()  # while it loads it does not listen
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connection.lost.wait(), CLOSE_SECONDS)
            self._connection.close()
        self._die()
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)

    def _command(self, command: Command) -> None:
        if self._connection is not None:
            self._connection.send(command)


class _Connection(asyncio.Protocol):
    """Frames from and to the child.  `ready` ends the load; `lost` is set when nothing more can come."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[Outputs], None],
        die: Callable[[], None],
        progress: Callable[[Progress], None],
    ) -> None:
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.lost = asyncio.Event()
        self._take = take
        self._die = die
        self._progress = progress
        self._frames = event_decoder()
        self._transport: asyncio.Transport | None = None
        self._failure: Exception = EngineError("the engine ended while it was loading")

    def send(self, message: object) -> None:
        """Queues a frame; after the end of the connection there is nobody to send to."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            events = self._frames.feed(data)
        except FrameError as error:
            self._failure = EngineError(str(error))
            self.close()
            return
        for event in events:
            self._dispatch(event)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost.set()
        self._die()
        if not self.ready.done():
            self.ready.set_exception(self._failure)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, Outputs):
            self._take(event)
        elif isinstance(event, Progress):
            self._progress(event)
        elif isinstance(event, Ready):
            if not self.ready.done():
                self.ready.set_result(event)
        else:
            self._failure = UserError(event.message) if event.user_error else EngineError(event.message)


class InProcessClient(_Client):
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
        driver = Driver(self._deployment)

        def send(news: Outputs) -> None:
            loop.call_soon_threadsafe(self._take, news)

        try:
            serve(driver, self._inbox, send)
        finally:
            driver.close()
            loop.call_soon_threadsafe(self._die)


class QueueInbox:
    """Commands from other threads of this process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def receive(self, timeout: float | None) -> list[Command]:
        """See `loop.Inbox`."""
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            commands.append(self._queue.get(timeout != 0.0, timeout))
            while True:
                commands.append(self._queue.get_nowait())
        return commands


def _end(process: subprocess.Popen[bytes]) -> None:
    """Waits for a child that has been told to end; kills it if it does not."""
    try:
        process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ignore(_news: object) -> None:
    """For those who want no news."""
