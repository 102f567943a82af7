"""The process that runs a kernel: `python -m corepipe.nki.run.child`; its input is a socket.

The first frame is a Job, the answer an Answer and the frames that it announces.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import FrameType

import msgspec
import numpy as np

from corepipe import sandbox
from corepipe.errors import UserError, shown
from corepipe.nki import installed
from corepipe.nki.core.buffers import Array
from corepipe.nki.run.execution import Execution, execute
from corepipe.nki.run.job import Answer, Failure, Job, Success
from corepipe.nki.run.limits import limited
from corepipe.nki.run.loading import described, is_of_user, of_user, site_of
from corepipe.sandbox import MAX_FRAME, receive, send

MAX_LINE = 2000
"""Characters of a failure's message."""

PART = 1 << 25
"""Bytes of a frame of elements."""


def main() -> None:
    """Answers one job."""
    connection = sandbox.connection().dup()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a kernel prints is no result
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    job = msgspec.msgpack.decode(receive(connection, MAX_FRAME), type=Job)
    Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    answer, parts = _answer(job, connection)
    send(connection, msgspec.msgpack.encode(answer))
    for part in parts:
        send(connection, part)


def _end_with_parent(connection: socket.socket) -> None:
    """Ends this process when the one that asked is gone."""
    with suppress(OSError):
        connection.recv(1)
    os._exit(1)


def _answer(job: Job, connection: socket.socket) -> tuple[Answer, Sequence[bytes]]:
    def end(_signal: int, frame: FrameType | None) -> None:
        """Answers that the time is up, and where the kernel was; no code of the user's can prevent it."""
        send(connection, msgspec.msgpack.encode(Failure(_late(job, frame))))
        os._exit(0)

    signal.signal(signal.SIGALRM, end)
    try:
        with limited(job.memory, job.seconds), installed():
            done = execute(job)
        parts = _written(job, done)
    except BaseException as error:
        return Failure(shown(_why(error, job), MAX_LINE)), ()
    return Success(done.report, len(parts)), parts


def _written(job: Job, done: Execution) -> list[bytes]:
    """Writes the trace, and returns the elements of the outputs, if they are wanted."""
    if job.trace is not None:
        try:
            done.result.save_trace(job.trace)
        except OSError as error:
            raise UserError(f"--trace {job.trace}: {error.strerror}", "trace") from error
    return list(_elements(done.result.outputs)) if job.outputs else []


def _elements(outputs: Sequence[Array]) -> Iterator[bytes]:
    """Yields the bytes of all elements, output by output."""
    for output in outputs:
        content = np.ascontiguousarray(output).reshape(-1).view(np.uint8)
        for start in range(0, content.size, PART):
            yield content[start : start + PART].tobytes()


def _why(error: BaseException, job: Job) -> str:
    path, error = Path(job.file), of_user(error)
    if not isinstance(error, MemoryError):
        return described(error, path)
    site = site_of(error.__traceback__)
    return f"{site or path}: takes more than {job.memory / 2**30:g} GiB of memory (--memory-gib)"


def _late(job: Job, frame: FrameType | None) -> str:
    """Returns that a kernel took too long, and the line of the user's that it executes."""
    where = job.file
    while frame is not None:
        if is_of_user(frame.f_code.co_filename):
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            break
        frame = frame.f_back
    return f"{where}: takes more than {job.seconds:g} s (--timeout-s)"


if __name__ == "__main__":
    main()
