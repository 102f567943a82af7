"""One engine in a child process: its start, its end, why it ended, and the watchdog that ends one that hangs.

A working engine beats (`channel.Heartbeat`): after each part of an Op, and at least four times a second
without work.  One that does not beat is judged by its threads.  If all of them sleep or are stopped, it
hangs.  If one runs, the engine has a long limit, in its own processor time: on a busy machine it may wait for
a processor for any time.  If one waits for a disk, the same limit holds between two moments of processor
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil

from corepipe.engine.channel import FrameDecoder, FrameError, encode_frame
from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import LoadAdapter
from corepipe.engine.messages import Event, LoadProgress, Outputs, Ready, Shutdown
from corepipe.errors import UserError
from corepipe.serving.supervision.engine_process import EngineError, EngineProcess

TICK_SECONDS = 0.1
"""The time between two looks at the heartbeat."""

SUSPICIOUS_SECONDS = 0.5
"""The time without a beat after which the threads are looked at: twice the interval of an idle engine."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Limits in seconds without a beat after which an engine hangs.

    still: while all threads sleep or are stopped, and none has run.  busy: the processor time of a thread, or
    the time of waiting for a disk and nothing else.
    """

    still: float
    busy: float


SERVING = HangLimits(still=1.0, busy=20.0)
"""An idle engine beats four times a second; the longest part of an Op takes well under a second."""


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """The threads of a process at a moment.  running: one runs or is ready to.  waiting: one waits for a
    disk. seconds: the processor time of each thread, by its id."""

    running: bool
    waiting: bool
    seconds: Mapping[int, float]

    def since(self, before: ThreadStates) -> float:
        """Returns the most processor time that one thread has had since `before`, in seconds."""
        known = before.seconds
        return max((now - known.get(thread, now) for thread, now in self.seconds.items()), default=0.0)


class Watchdog:
    """Watches the number that `read` returns; calls `look` when that has not changed for some time."""

    def __init__(self, read: Callable[[], int], look: Callable[[], ThreadStates], limits: HangLimits) -> None:
        self._read = read
        self._look = look
        self._limits = limits
        self._begin(read())

    def hangs(self, elapsed: float) -> bool:
        """Looks at the number, `elapsed` seconds after the last look.  Returns whether the engine hangs.

        A late look counts as two ticks at most: then the server stood still as well, and the engine may not
        have had time to run.
        """
        beats = self._read()
        if beats != self._last:
            self._begin(beats)
            return False
        pause = min(elapsed, 2 * TICK_SECONDS)
        self._silence += pause
        self._idle += pause
        return self._silence >= SUSPICIOUS_SECONDS and self._judge(self._look())

    def _begin(self, beats: int) -> None:
        self._last = beats
        self._silence = self._idle = self._used = 0.0
        self._seen: ThreadStates | None = None

    def _judge(self, seen: ThreadStates) -> bool:
        used = 0.0 if self._seen is None else seen.since(self._seen)
        self._seen = seen
        if used > 0.0:
            self._idle = 0.0
        self._used += used
        if seen.running or self._used >= self._limits.busy:
            return self._used >= self._limits.busy
        return self._idle >= (self._limits.busy if seen.waiting else self._limits.still)


def look_at(pid: int) -> ThreadStates:
    """Reads the threads of a process (proc_pid_stat(5)); of one that is gone, no thread runs.

    Systems that do not show threads count as one thread that waits for a disk.
    """
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            return ThreadStates(running=False, waiting=True, seconds={pid: times.user + times.system})
        return ThreadStates(running=False, waiting=False, seconds={})
    ticks = os.sysconf("SC_CLK_TCK")
    states, seconds = set(), {}
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = task.read_bytes().rpartition(b") ")[2].split()
            states.add(fields[0])
            seconds[int(task.parent.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return ThreadStates(b"R" in states, b"D" in states, seconds)


CLOSE_SECONDS = 5.0
"""The time in which an engine must end after a Shutdown before it is killed."""

LAST_SECONDS = 5.0
"""The time in which it must end after it has closed its end of the connection, as a dying engine does."""

REST_BYTES = 1 << 18
"""The bytes read at a time from a broken connection."""


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The end of an engine.  reason: a label of the metrics; words: the same for people."""

    reason: str
    words: str


class EngineChild:
    """The engine number `epoch` of a server.  Its process may exist, its imports done, before it is started.

    `command` starts its process, unless `engine` is one already.
    `take` gets its Outputs; with `tells_prefixes` they include the contents of its prefix caches.  It is not
    called after `kill` or `close`.
    """

    def __init__(
        self,
        command: Sequence[str],
        epoch: int,
        take: Callable[[Outputs], None],
        *,
        tells_prefixes: bool = False,
        engine: EngineProcess | None = None,
    ) -> None:
        self._command = command
        self._engine = engine
        self._epoch = epoch
        self._take = take
        self._tells_prefixes = tells_prefixes
        self._connection: _ChildConnection | None = None
        self._loaded = False
        self._hung = False
        self._killed_here = False

    @property
    def pid(self) -> int | None:
        """The id of its process; None before the start."""
        return None if self._engine is None else self._engine.pid

    @property
    def returncode(self) -> int | None:
        """The return code as of subprocess.Popen; None while it runs."""
        return None if self._engine is None else self._engine.returncode

    @property
    def killed(self) -> bool:
        """Tells whether another process has killed it, as the kernel does where memory is short."""
        return self.returncode == -signal.SIGKILL and not self._killed_here

    async def start(
        self,
        config: EngineConfig,
        progress: Callable[[LoadProgress], None],
        limits: HangLimits | None = None,
        adapters: list[LoadAdapter] | None = None,
    ) -> Ready:
        """Loads the engine; `limits` say when it hangs (None: never); `adapters`: see `Start`.

        Raises UserError where the config is at fault, EngineError where the engine is.
        """
        if self._engine is None:
            self.spawn()
        else:
            self._engine.wake()
        assert self._engine is not None
        self._engine.tell(config, self._epoch, tells_prefixes=self._tells_prefixes, adapters=adapters)
        loop, ours = asyncio.get_running_loop(), self._engine.socket
        connection = _ChildConnection(loop, ours, self._epoch, self._take, progress)
        self._connection = connection
        await loop.create_unix_connection(lambda: connection, sock=ours)
        try:
            if limits is not None and await self._hangs_before(connection.loaded_within, limits):
                raise EngineError("it hung")
            ready = await connection.ready
        finally:
            connection.ready.cancel()  # nobody else awaits it
        self._loaded = True
        return ready

    def send(self, message: object) -> None:
        """Queues a message; drops it after the end."""
        if self._connection is not None:
            self._connection.send(message)

    async def ended(self) -> EngineEnd:
        """Waits until the engine has died, or hangs and is killed.  Returns how it ended."""
        assert self._connection is not None
        self._hung = await self._hangs_before(self._connection.lost_within, SERVING)
        await self.kill()
        return self._end()

    async def _hangs_before(self, over: Callable[[float], Awaitable[bool]], limits: HangLimits) -> bool:
        """Tells whether it hangs before `over` returns True; that waits for so many seconds at most."""
        assert self._connection is not None
        assert self._engine is not None
        connection, beats, pid = self._connection, self._engine.heartbeat.read, self._engine.pid
        watchdog = Watchdog(lambda: beats() + connection.heard, lambda: look_at(pid), limits)
        loop = asyncio.get_running_loop()
        last = loop.time()
        while not await over(TICK_SECONDS):
            now = loop.time()
            if watchdog.hangs(now - last):
                return True
            last = now
        return False

    async def kill(self) -> None:
        """Ends it at once; one that is already ending by itself gets time, so that its own reason counts."""
        if self._connection is not None:
            self._connection.close()
        if self._engine is None:
            return
        if self._connection is None or not self._connection.made:
            self._engine.socket.close()
        lost = self._connection is not None and self._connection.lost.is_set()
        self._killed_here |= await asyncio.to_thread(self._engine.end, LAST_SECONDS if lost else 0.0)

    async def close(self) -> None:
        """Sends a Shutdown, at which it ends its requests and itself; kills it if it does not."""
        if self._connection is not None and self._loaded:  # while it loads it reads no messages
            self._connection.send(Shutdown())
            await self._connection.lost_within(CLOSE_SECONDS)
        await self.kill()

    @property
    def waits(self) -> bool:
        """Tells whether its process runs and has not been started as an engine."""
        return self._engine is not None and self._connection is None and self._engine.runs

    def spawn(self) -> None:
        """Starts the process, which waits for `start`; see `EngineProcess`.  Raises EngineError."""
        self._engine = EngineProcess(self._command)

    def _end(self) -> EngineEnd:
        """Names the reason of the end; raises nothing."""
        code = self.returncode or 0
        if self._hung:
            return EngineEnd("hung", "hung, and was killed")
        if self._connection is not None and self._connection.last_word is not None:
            return EngineEnd("failed", f"failed: {self._connection.last_word}")
        if self._killed_here:
            return EngineEnd("failed", "was silent, did not end, and was killed")
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            more = " (out of memory?)" if -code == signal.SIGKILL else ""
            return EngineEnd("killed" if -code == signal.SIGKILL else "crashed", f"was ended by {name}{more}")
        return EngineEnd("failed", f"ended with code {code}")


class _ChildConnection(asyncio.Protocol):
    """Frames from and to the child over `sock`, which the transport owns once there is one.

    `ready` has the result of the load; `lost` is set when no more events can come.  heard: the number of
    events so far.  last_word: the error that the child reported before it ended, if any.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        epoch: int,
        take: Callable[[Outputs], None],
        progress: Callable[[LoadProgress], None],
    ) -> None:
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.lost = asyncio.Event()
        self.heard = 0
        self.last_word: str | None = None
        self._socket = sock
        self._epoch = epoch
        self._take = take
        self._progress = progress
        self._frames = FrameDecoder[Event](Event)
        self._transport: asyncio.Transport | None = None
        self._failure: Exception = EngineError("the engine ended while it was loading")

    def send(self, message: object) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    @property
    def made(self) -> bool:
        """Tells whether there is a transport, which then owns the socket."""
        return self._transport is not None

    def close(self) -> None:
        """Ends the connection and ignores all later events."""
        self._take = self._progress = _ignore
        if self._transport is not None:
            self._transport.abort()

    async def loaded_within(self, seconds: float) -> bool:
        """Waits at most `seconds` for the end of the load, good or bad.  Returns whether it came."""
        await asyncio.wait({self.ready}, timeout=seconds)
        return self.ready.done()

    async def lost_within(self, seconds: float) -> bool:
        """Waits at most `seconds` for the end of the connection.  Returns whether it came."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.lost.wait(), seconds)
        return self.lost.is_set()

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

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._read_rest()
        self.lost.set()
        if not self.ready.done():
            self.ready.set_exception(self._failure)

    def _read_rest(self) -> None:
        """Reads the rest of what a child sent: a transport that fails to write to it stops reading."""
        with contextlib.suppress(OSError):
            while data := self._socket.recv(REST_BYTES, socket.MSG_DONTWAIT):
                self.data_received(data)

    def _dispatch(self, event: Event) -> None:
        self.heard += 1
        if isinstance(event, Outputs):
            if event.epoch == self._epoch:
                self._take(event)
        elif isinstance(event, LoadProgress):
            self._progress(event)
        elif isinstance(event, Ready):
            if not self.ready.done():
                self.ready.set_result(event)
        else:
            self.last_word = event.message
            self._failure = UserError(event.message) if event.user_error else EngineError(event.message)


def _ignore(_news: object) -> None:
    """Ignores a message."""
