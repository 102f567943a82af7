"""The process of an engine, as its server sees it.

Made early, it does its imports while the server does its own.
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

from corepipe.engine.config import EngineConfig
from corepipe.engine.heartbeat import Heartbeat, make_heartbeat
from corepipe.engine.messages import Start
from corepipe.engine.process.frames import encode_frame
from corepipe.signals import held_back

ENGINE_COMMAND = (sys.executable, "-P", "-m", "corepipe.engine.process")


class EngineError(RuntimeError):
    """The engine failed through no fault of the user's."""


class EngineProcess:
    """A process that does its imports, waits until it is told what to load, and loads that.

    socket: our end of the connection; what the process says waits there.  heartbeat: see `Heartbeat`.  As a
    context it is killed at the end, if it is there still.
    """

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        """`command` starts it; the numbers of two file descriptors are added, see `engine.process`.

        In this thread: on Linux it ends with the thread that made it.  In a session of its own, and with what
        it will ignore held back: signals that a terminal or a service manager sends to all of us are ours to
        answer, from its first import on.  Raises EngineError where it cannot be made.
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
        """As of subprocess.Popen; None while it runs, as far as was looked."""
        return self._process.returncode

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def tell(self, config: EngineConfig, epoch: int = 0, *, tells_prefixes: bool = False) -> None:
        """It is engine number `epoch` and loads this; the same may be said again.

        Raises ValueError where it was told otherwise.  Of one that has died its connection tells.
        """
        start = Start(config.model_dump(mode="json"), epoch, tells_prefixes)
        if self._told not in (None, start):
            raise ValueError("this engine loads something else")
        if self._told is None:
            self._told = start
            with contextlib.suppress(OSError):
                self.socket.sendall(encode_frame(start))  # a few KB: there is room for them

    def wake(self) -> None:
        """What stopped another engine may have stopped this one, too."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, seconds: float) -> bool:
        """Waits so long for it to end by itself; kills it, and says so, if it does not."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return True
        return False
