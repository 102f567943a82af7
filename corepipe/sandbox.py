"""Processes that work on untrusted input: work that never ends ends its process and no other.

`SandboxProcess` is the asking side.  `connection`, `confine` and `time_limit` are for the process that
answers, one frame for each question.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from corepipe.signals import held_back, leave_to_parent

LENGTH_BYTES = 4
MAX_FRAME = 1 << 26
"""The most bytes of a frame."""
START_SECONDS = 60.0
"""The time for the process to start; it takes a tenth of a second on an idle machine."""
ANSWER_SECONDS = 20.0
"""The time without any processor time, for processes that the kernel's limit does not end: stopped ones."""

ENVIRONMENT = (
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "PYTHONPATH",
    "PYTHONHOME",
)
"""The environment variables that the process gets; there may be secrets in the others."""

A = TypeVar("A")


class EndedError(Exception):
    """Raised where the process is gone, with the reason as the end of a sentence.

    exhausted: its question took too much time or memory, or broke it.
    """

    def __init__(self, why: str, *, exhausted: bool) -> None:
        super().__init__(why)
        self.exhausted = exhausted


class SandboxProcess:
    """A process that runs `module`, which may take `cpu_seconds` of processor time for an answer.

    It answers one question at a time, and ends with this object and with our process.
    """

    def __init__(self, module: str, cpu_seconds: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs, held_back():
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-P", "-m", module, str(cpu_seconds)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                start_new_session=True,  # our process handles Ctrl-C in a terminal
            )
        self.pid = process.pid
        self._connection, self._process, self._cpu_seconds = ours, process, cpu_seconds
        self.close = weakref.finalize(self, _end, ours, process)

    def ask(self, frame: bytes, answer: type[A], seconds: float) -> A:
        """Returns the answer to a frame.  Ends the process and raises EndedError where none comes.

        seconds: the time without any processor time after which no answer is expected.
        """
        self._connection.settimeout(seconds)
        try:
            send(self._connection, frame)
            self._await_answer()
            return msgspec.msgpack.decode(receive(self._connection, MAX_FRAME), type=answer)
        except (EOFError, OSError, ValueError) as error:
            raise self._ended(error) from error

    def _await_answer(self) -> None:
        """Waits for an answer.  Raises TimeoutError where the process gets no processor time for too long."""
        spent = -1.0
        while True:
            try:
                self._connection.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                before, spent = spent, self._spent()
                if spent <= before:
                    raise
            else:
                return

    def _spent(self) -> float:
        """Returns the processor time of the process in seconds."""
        import psutil  # noqa: PLC0415 -- the process that answers imports this module, and is started often

        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.Error:
            return -1.0
        return float(times.user + times.system)

    def _ended(self, error: Exception) -> EndedError:
        if not isinstance(error, TimeoutError):
            with contextlib.suppress(subprocess.TimeoutExpired):  # it ends a little after the stream
                self._process.wait(1.0)
        code = self._process.poll()
        self.close()
        if isinstance(error, TimeoutError):
            return EndedError("waits for a process that gets no processor time", exhausted=False)
        if code == -signal.SIGPROF:
            return EndedError(f"takes more than {self._cpu_seconds:g} s of processor time", exhausted=True)
        # Signals from other processes are not the fault of the question.
        crashed = code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL)
        how = "" if code is None else f" ({code})"
        return EndedError(f"ended the process that works on it{how}", exhausted=crashed)


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


def receive(connection: socket.socket, most: int) -> bytes:
    """Reads the next frame.  Raises EOFError at the end, ValueError for one of more than `most` bytes."""
    length = int.from_bytes(_exactly(connection, LENGTH_BYTES), "little")
    if length > most:
        raise ValueError(f"a frame of {length} bytes")
    return _exactly(connection, length)


def send(connection: socket.socket, data: bytes) -> None:
    """Writes a frame."""
    connection.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        data = connection.recv(min(count - len(parts), 1 << 20))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)


def connection() -> socket.socket:
    """Returns the connection to the questions, in the process that answers; its parent handles signals."""
    leave_to_parent()
    return socket.socket(fileno=0)


def confine(max_memory: int) -> None:
    """Limits this process to `max_memory` bytes of address space, and to no more files or processes."""
    limits = {
        resource.RLIMIT_AS: max_memory,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for limit, most in limits.items():
        with contextlib.suppress(OSError, ValueError):  # where a system does not have it
            resource.setrlimit(limit, (most, most))


@contextlib.contextmanager
def time_limit(cpu_seconds: float) -> Iterator[None]:
    """Limits processor time, which a busy machine does not use up; the signal has no handler and ends us."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
