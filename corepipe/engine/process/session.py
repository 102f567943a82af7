"""The session of an engine and its server over a socket: first comes a Start, then Commands, and Events go
back.

The commands are the source of the engine loop.  The session ends on a Shutdown, or when its parent is gone.
Signals that may go to a whole group of processes are handled by the parent: requests under way are to be
completed.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Protocol

from msgspec.structs import replace

from corepipe.engine.channel import BEAT_SECONDS, FrameDecoder, Heartbeat, encode_frame
from corepipe.engine.config import EngineConfig
from corepipe.engine.freeze_heap import freeze_heap
from corepipe.engine.loop.deployment import Assemble
from corepipe.engine.loop.driver import Driver
from corepipe.engine.lora import AdapterReport, LoadAdapter, read_lora_module
from corepipe.engine.messages import (
    Command,
    Event,
    Failed,
    LoadProgress,
    Output,
    Outputs,
    Shutdown,
    Start,
    Started,
    Stats,
)
from corepipe.engine.process.kv_publisher import published_events
from corepipe.engine.process.prefix_changes import PrefixChanges, prefix_changes
from corepipe.engine.process.stderr import write_without_waiting
from corepipe.engine.process.wakeup import wake_promptly
from corepipe.errors import UserError
from corepipe.signals import leave_to_parent

STATS_SECONDS = 0.05
"""Least time between two Stats of a replica, except that going idle is always reported."""


class Inbox(Protocol):
    """The source of commands."""

    def receive(self, timeout: float | None) -> list[Command]:
        """Returns the commands that have come; waits up to `timeout` seconds for the first (None: until it
        comes).

        Raises EOFError when the other side is gone.
        """


def serve(
    driver: Driver,
    inbox: Inbox,
    send: Callable[[Outputs], None],
    seconds: Callable[[], float] = time.monotonic,
    epoch: int = 0,
    prefixes: PrefixChanges | None = None,
) -> None:
    """Runs the driver until Shutdown, which aborts every request, or until the other side is gone.

    Outputs are sent after the next batch has been submitted, so that encoding overlaps computing. `seconds`
    paces the Stats; `epoch` is the engine's number. `prefixes`: collects the changes of its caches.
    """

    def send_all(outputs: list[Output], stats: list[Stats]) -> None:
        """Sends one message; one more for each further replica's stats."""
        found = None if prefixes is None else prefixes.take()
        adapters = driver.adapter_reports()
        if outputs or stats or found is not None or adapters:
            first = stats[0] if stats else None
            send(Outputs(outputs, first, epoch=epoch, prefixes=found, adapters=adapters))
        for more in stats[1:]:
            send(Outputs([], more, epoch=epoch))

    send_all([], driver.stats())  # so that gauges exist before the first request
    commands = _Commands(driver, inbox, seconds())
    try:
        for _ in driver.turns(commands):
            outputs = driver.outputs()
            send_all(outputs, driver.stats() if commands.stats_due(seconds()) else [])
    except EOFError:
        return
    send_all(driver.outputs(), driver.stats())


class _Commands:
    """The commands of a server, as the source of a loop; and the times at which Stats are due."""

    def __init__(self, driver: Driver, inbox: Inbox, now: float) -> None:
        self._driver = driver
        self._inbox = inbox
        self._last_stats = self._now = now

    def next_arrival(self) -> float:
        return inf

    def receive(self) -> bool:
        """Returns False after a Shutdown, which aborts every request. Raises EOFError."""
        for command in self._inbox.receive(self._patience()):
            if isinstance(command, Shutdown):
                self._driver.abort_all()
                return False
            self._driver.handle(command)
        self._driver.release()
        return True

    def stats_due(self, now: float) -> bool:
        """Tells whether Stats are to be sent at the end of a turn."""
        self._now = now
        due = now - self._last_stats >= STATS_SECONDS or not self._driver.busy
        if due:
            self._last_stats = now
        return due

    def _patience(self) -> float | None:
        """Returns the seconds to wait for commands: a step of minutes must not delay the Stats."""
        patience = self._driver.patience()
        if patience is None or not self._driver.busy:
            return patience
        return min(patience, max(0.0, self._last_stats + STATS_SECONDS - self._now))


READ_BYTES = 1 << 18
SEND_BUFFER_BYTES = 1 << 20
"""Room for about a thousand steps' Outputs, so that a parent that is briefly busy does not stop the
engine."""

EXIT_FAULT, EXIT_USER = 1, 2


class SocketInbox:
    """Receives commands from a socket; counts heartbeats while it waits for them. Any thread may `wake` the
    one that waits."""

    def __init__(self, connection: socket.socket, heartbeat: Heartbeat) -> None:
        self._connection = connection
        self._heartbeat = heartbeat
        self._frames = FrameDecoder[Command](Command)
        self._woken, self._waker = socket.socketpair()
        self._woken.settimeout(0.0)
        self._waker.settimeout(0.0)

    @property
    def files(self) -> tuple[int, int]:
        """The file descriptors that can be read when there is something to receive."""
        return self._connection.fileno(), self._woken.fileno()

    def wake(self) -> None:
        """Ends the wait of `receive`, or the next one."""
        with contextlib.suppress(BlockingIOError):  # it has been woken many times already
            self._waker.send(b"\0")

    def receive(self, timeout: float | None) -> list[Command]:
        """See `serve.Inbox`. Raises FrameError for a message that is not a command."""
        commands: list[Command] = []
        while self._readable(timeout):
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise EOFError
            commands += self._frames.feed(data)
            timeout = 0.0 if commands else timeout
        return commands

    def _readable(self, timeout: float | None) -> bool:
        while True:
            self._heartbeat.beat()
            wait = BEAT_SECONDS if timeout is None else min(timeout, BEAT_SECONDS)
            ready = select.select([self._connection, self._woken], [], [], wait)[0]
            if self._woken in ready:
                self._woken.recv(READ_BYTES)
            if ready:
                return self._connection in ready
            if timeout is not None:
                timeout -= wait
                if timeout <= 0.0:
                    return False


def attend(fd: int, heartbeat_fd: int, assemble: Assemble) -> int:
    """Runs an engine over the socket `fd`; returns the exit code of its process."""
    leave_to_parent()
    write_without_waiting()
    end_with_parent()
    with socket.socket(fileno=fd) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

        def send(event: Event) -> None:
            connection.sendall(encode_frame(event))

        try:
            run(connection, Heartbeat(heartbeat_fd), assemble, send)
        except (EOFError, ConnectionError):
            return 0  # the server is gone
        except UserError as error:
            return _fail(send, Failed(error.message, user_error=True), EXIT_USER)
        except Exception as error:  # the parent must get any error
            traceback.print_exc()
            return _fail(send, Failed(f"{type(error).__name__}: {error}", user_error=False), EXIT_FAULT)
    return 0


def run(
    connection: socket.socket, heartbeat: Heartbeat, assemble: Assemble, send: Callable[[Event], None]
) -> None:
    """Reads the config, loads, and serves until the session ends."""
    start = read_start(connection)
    config = EngineConfig.model_validate(start.config)
    deployment = assemble(config, lambda what, done: send(LoadProgress(what, done)), heartbeat.native)
    inbox = SocketInbox(connection, heartbeat)

    def on_start(started: list[Started]) -> None:
        send(Outputs(started=started, epoch=start.epoch))

    with ExitStack() as held:
        held.callback(deployment.close)
        events = held.enter_context(published_events(config, deployment))
        driver = Driver(deployment, on_start, inbox.wake, events)
        prefixes = prefix_changes(deployment) if start.tells_prefixes else None
        if prefixes is not None:
            driver.listen(prefixes)
        deployment.heed(inbox.files)
        ready = replace(deployment.ready, adapters=_load_adapters(driver, config, start))
        freeze_heap()
        wake_promptly()
        send(ready)
        serve(driver, inbox, send, epoch=start.epoch, prefixes=prefixes)


def _load_adapters(driver: Driver, config: EngineConfig, start: Start) -> list[AdapterReport]:
    """Loads the adapters that a lost engine had, or those of the config. Raises UserError where one of the
    config cannot be loaded; of a lost engine's the report says why."""
    if start.adapters is not None:
        return [driver.load_adapter(command) for command in start.adapters]
    reports = []
    for module in map(read_lora_module, config.lora_modules):
        reports.append(driver.load_adapter(LoadAdapter(module.name, module.path)))
        if reports[-1].error:
            raise UserError(f"--lora-modules {module.name}: {reports[-1].error}", "lora_modules")
    return reports


def read_start(connection: socket.socket) -> Start:
    """Reads the first frame. Raises EOFError and FrameError."""
    frames = FrameDecoder[Start](Start)
    while True:
        missing = frames.missing
        data = connection.recv(missing)
        if not data:
            raise EOFError
        for start in frames.feed(data):
            return start


def end_with_parent() -> None:
    """Asks Linux to end this process with its parent; elsewhere the end of the stream does it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _fail(send: Callable[[Event], None], failed: Failed, code: int) -> int:
    with contextlib.suppress(OSError):  # the parent may be gone as well
        send(failed)
    return code
