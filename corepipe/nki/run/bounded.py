"""Runs of kernels in processes of their own, which end with their time, their memory or our process."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from threading import Thread
from time import monotonic
from typing import TextIO

import msgspec
import numpy as np

from corepipe.errors import UserError
from corepipe.nki.core.buffers import Array
from corepipe.nki.run.job import Answer, Failure, Job, Success
from corepipe.nki.run.report import ArrayReport, KernelReport, dtype_named
from corepipe.sandbox import MAX_FRAME, receive, send
from corepipe.signals import held_back

MODULE = "corepipe.nki.run.child"

GRACE_SECONDS = 20.0
"""The time beyond its own in which a process starts, and answers that its time is up."""

STEP_SECONDS = 1.0
"""Between two reports that a run still waits."""


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A report and, where they were asked for, the outputs."""

    report: KernelReport
    outputs: Sequence[Array]


def run(job: Job, waiting: Callable[[float], None]) -> KernelRun:
    """Runs a kernel; `waiting` is told the seconds so far, about every second.

    What the kernel prints goes to stderr.  Raises UserError for what is wrong with the kernel or its inputs,
    and where it takes too much.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, held_back():
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [sys.executable, "-P", "-u", "-m", MODULE],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,  # a file would be under the limit of files
                text=True,
                errors="replace",
                start_new_session=True,  # our process handles Ctrl-C in a terminal
            )
        with _ended(process):
            return _answer(job, ours, process, waiting)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Copies what a process prints to stderr meanwhile, and ends it."""
    assert process.stderr is not None
    copying = Thread(target=_copy, args=(process.stderr,), daemon=True)
    copying.start()
    try:
        yield
    finally:
        process.kill()
        process.wait()
        copying.join(STEP_SECONDS)  # a process of the kernel's own may hold its end


def _copy(printed: TextIO) -> None:
    with printed, contextlib.suppress(OSError, ValueError):
        for line in printed:
            print(line, end="", file=sys.stderr, flush=True)  # noqa: T201


def _answer(
    job: Job, connection: socket.socket, process: subprocess.Popen[str], waiting: Callable[[float], None]
) -> KernelRun:
    try:
        send(connection, msgspec.msgpack.encode(job))
        _await(connection, job, waiting)
        answer = msgspec.msgpack.decode(receive(connection, MAX_FRAME), type=Answer)
        if isinstance(answer, Failure):
            raise UserError(answer.message)
        return KernelRun(answer.report, _outputs(connection, answer))
    except (EOFError, ConnectionError) as error:
        raise UserError(f"{job.file}: {_how(process)}") from error


def _await(connection: socket.socket, job: Job, waiting: Callable[[float], None]) -> None:
    """Waits for an answer.  Raises UserError where none comes even after the process should have ended."""
    began = monotonic()
    while not select.select([connection], [], [], STEP_SECONDS)[0]:
        waiting(seconds := monotonic() - began)
        if seconds > job.seconds + GRACE_SECONDS:
            raise UserError(f"{job.file}: takes more than {job.seconds:g} s (--timeout-s)", "timeout_s")


def _outputs(connection: socket.socket, answer: Success) -> list[Array]:
    if not answer.parts:
        return []
    content = b"".join(receive(connection, MAX_FRAME) for _ in range(answer.parts))
    found, start = [], 0
    for output in answer.report.outputs:
        array = _array(output, content, start)
        start += array.nbytes
        found.append(array)
    return found


def _array(output: ArrayReport, content: bytes, start: int) -> Array:
    assert output.shape is not None
    assert output.dtype is not None
    dtype = dtype_named(output.dtype)
    return np.frombuffer(content, dtype, prod(output.shape), start).reshape(output.shape)


def _how(process: subprocess.Popen[str]) -> str:
    """Returns how the process of a kernel ended without an answer."""
    try:
        code = process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "its process gives no answer"
    if code == -signal.SIGKILL:
        return "its process was killed, perhaps as this machine has no memory left; --memory-gib limits it"
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"its process ended {how}, without a result"
