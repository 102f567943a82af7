"""The session of an engine and its server over a socket: first comes a Start, then Commands, and Events go
back.

It ends on a Shutdown, or when its parent is gone. Signals that may go to a whole group of processes are
handled by the parent: requests under way are to be completed.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack

from corepipe.engine.config import EngineConfig
from corepipe.engine.freeze_heap import freeze_heap
from corepipe.engine.heartbeat import BEAT_SECONDS, Heartbeat
from corepipe.engine.loop.deployment import Assemble
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Command, Event, Failed, LoadProgress, Outputs, Start, Started
from corepipe.engine.process.frames import command_decoder, encode_frame, start_decoder
from corepipe.engine.process.kv_publisher import published_events
from corepipe.engine.process.prefix_changes import prefix_changes
from corepipe.engine.process.serve import serve
from corepipe.engine.process.stderr import write_without_waiting
from corepipe.engine.process.wakeup import wake_promptly
from corepipe.errors import UserError
from corepipe.signals import leave_to_parent

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
        self._frames = command_decoder()
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
        freeze_heap()
        wake_promptly()
        send(deployment.ready)
        serve(driver, inbox, send, epoch=start.epoch, prefixes=prefixes)


def read_start(connection: socket.socket) -> Start:
    """Reads the first frame. Raises EOFError and FrameError."""
    frames = start_decoder()
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
