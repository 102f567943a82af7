"""The engine's process: `python -m corepipe.serving.process FD`, where FD is its end of a socket pair.

The first frame is an EngineConfig; then come Commands, and Events go back.  The process ends when it is
told to, when its parent is gone, or on SIGTERM; SIGINT is the parent's to answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

from corepipe.errors import UserError
from corepipe.serving.config import EngineConfig
from corepipe.serving.deployment import Assemble
from corepipe.serving.driver import Driver
from corepipe.serving.frames import command_decoder, config_decoder, encode_frame
from corepipe.serving.loop import serve
from corepipe.serving.messages import Command, Event, Failed, Progress

READ_BYTES = 1 << 18
SEND_BUFFER_BYTES = 1 << 20
"""Room for about a thousand steps' Outputs, so that a parent that is briefly busy does not hold us up."""

EXIT_FAULT, EXIT_USER = 1, 2


class SocketInbox:
    """Commands from a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = command_decoder()

    def receive(self, timeout: float | None) -> list[Command]:
        """See `loop.Inbox`.  Raises FrameError for what is not a command."""
        commands: list[Command] = []
        while select.select([self._connection], [], [], timeout)[0]:
            data = self._connection.recv(READ_BYTES)
            if not data:
                raise EOFError
            commands += self._frames.feed(data)
            timeout = 0.0 if commands else timeout
        return commands


def main(fd: int, assemble: Assemble) -> int:
    """Runs an engine over the socket `fd`; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with socket.socket(fileno=fd) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

        def send(event: Event) -> None:
            connection.sendall(encode_frame(event))

        try:
            run(connection, assemble, send)
        except (EOFError, ConnectionError):
            return 0  # nobody is left to tell
        except UserError as error:
            return _fail(send, Failed(error.message, user_error=True), EXIT_USER)
        except Exception as error:  # whatever it is, the parent must hear of it
            traceback.print_exc()
            return _fail(send, Failed(f"{type(error).__name__}: {error}", user_error=False), EXIT_FAULT)
    return 0


def run(connection: socket.socket, assemble: Assemble, send: Callable[[Event], None]) -> None:
    """Reads the config, loads, and serves until it is over."""
    config = read_config(connection)
    deployment = assemble(config, lambda what, done: send(Progress(what, done)))
    driver = Driver(deployment)
    try:
        # The inbox then reads an end of the stream, and the loop ends between two turns.
        signal.signal(signal.SIGTERM, lambda _signal, _frame: connection.shutdown(socket.SHUT_RD))
        gc.collect()
        gc.freeze()
        send(deployment.ready)
        serve(driver, SocketInbox(connection), send)
    finally:
        driver.close()


def read_config(connection: socket.socket) -> EngineConfig:
    """The first frame.  Raises EOFError, FrameError and pydantic's ValidationError."""
    frames = config_decoder()
    while True:
        missing = frames.missing
        data = connection.recv(missing)
        if not data:
            raise EOFError
        for config in frames.feed(data):
            return EngineConfig.model_validate(config)


def end_with_parent() -> None:
    """Asks Linux to end this process with its parent; elsewhere the end of the stream does it."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _fail(send: Callable[[Event], None], failed: Failed, code: int) -> int:
    with contextlib.suppress(OSError):  # the parent may be gone, too
        send(failed)
    return code


if __name__ == "__main__":
    from corepipe.serving.assembly import assemble

    sys.exit(main(int(sys.argv[1]), assemble))
