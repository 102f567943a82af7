"""The process of an engine, from the side of its server.

A process that is started early does its imports while the server does its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

from corepipe.engine.channel import Heartbeat, encode_frame, make_heartbeat
from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import LoadAdapter
from corepipe.engine.messages import Start
from corepipe.signals import held_back

ENGINE_COMMAND = (sys.executable, "-P", "-m", "corepipe.engine.process")


class EngineError(RuntimeError):
    """A failure of the engine that is not the user's fault."""


class EngineProcess:
    """A process that does its imports, waits for a config, and loads that.

    socket: the server's end of the connection; messages of the process wait there.  heartbeat: see
    `Heartbeat`. As a context manager it kills the process at the end, if that still runs.
    """

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        """Starts the process by `command` and the numbers of two file descriptors, see `engine.process`.

        On Linux it ends with the thread that started it.  It has a session of its own, and the signals that
        it will ignore are blocked until then: the server answers signals that a terminal or a service manager
        sends to all processes, from the first import on.  Raises EngineError where it cannot be started.
        """
        self._told: Start | None = None
        with contextlib.ExitStack() as unmade:
            try:
                self.socket, theirs = socket.socketpair()
                unmade.enter_context(self.socket)
                with theirs:
                    self._run(command, theirs.fileno())
            except OSError as error:
                raise EngineError(f"the engine cannot be started: {error}") from error
            unmade.pop_all()

    def _run(self, command: Sequence[str], fd: int) -> None:
        heartbeat = make_heartbeat()
        try:
            self.heartbeat = Heartbeat(heartbeat)
            with held_back():
                self._process = subprocess.Popen(  # noqa: S603
                    [*command, str(fd), str(heartbeat)],
                    pass_fds=(fd, heartbeat),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        finally:
            os.close(heartbeat)

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(0.0)
        self.socket.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The return code as of subprocess.Popen; None while it ran at the last look."""
        return self._process.returncode

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def tell(
        self,
        config: EngineConfig,
        epoch: int = 0,
        *,
        tells_prefixes: bool = False,
        adapters: list[LoadAdapter] | None = None,
    ) -> None:
        """Tells the process its config and that it is engine number `epoch`; doing so again changes nothing.

        Raises ValueError where it was told another config.  If it has died, its connection reports that.
        """
        start = Start(config.model_dump(mode="json"), epoch, tells_prefixes, adapters)
        if self._told not in (None, start):
            raise ValueError("this engine loads something else")
        if self._told is None:
            self._told = start
            with contextlib.suppress(OSError):
                self.socket.sendall(encode_frame(start))  # a few KB: there is room for them

    def wake(self) -> None:
        """Continues a stopped process: what stopped another engine may have stopped this one, too."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, seconds: float) -> bool:
        """Waits at most `seconds` for its end, then kills it.  Returns whether it was killed."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return True
        return False
