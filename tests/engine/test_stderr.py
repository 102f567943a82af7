from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from corepipe.engine.process.stderr import MOST_WAITING, NonBlockingLog
from tests.servers import until

LINE = "x" * 99 + "\n"


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int, int]]:
    """Makes a pipe that is full; returns both ends, and the number of bytes in it."""
    reader, writer = os.pipe()
    try:
        yield reader, writer, fill(writer)
    finally:
        os.close(writer)
        os.close(reader)


def fill(writer: int) -> int:
    os.set_blocking(writer, False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            count += os.write(writer, b"." * 512)
    os.set_blocking(writer, True)
    return count


class Reader:
    """Reads a pipe to its end, in a thread beside the test."""

    def __init__(self, fd: int) -> None:
        self.read = b""
        self._fd = fd
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 1 << 16):
                self.read += data


def test_what_is_written_comes_out_in_order() -> None:
    reader, writer = os.pipe()
    log, out = NonBlockingLog(writer), Reader(reader)
    for number in range(1000):
        print(number, "zwölf 🙂", "\ud800", file=log)
    log.drain()
    assert until(lambda: out.read.count(b"\n") == 1000)
    assert out.read.decode().splitlines() == [f"{number} zwölf 🙂 \\ud800" for number in range(1000)]
    assert log.dropped == 0
    os.close(writer)


def test_who_writes_waits_for_nobody_and_losses_are_told() -> None:
    with full_pipe() as (reader, writer, filled):
        log = NonBlockingLog(writer)
        lines = 2 * MOST_WAITING // len(LINE)
        for _ in range(lines):
            log.write(LINE)
        kept = MOST_WAITING // len(LINE)
        assert log.dropped == lines - kept
        out = Reader(reader)
        log.write("after\n")
        told = f"corepipe: {lines - kept} lines of this log could not be written\n".encode()
        assert until(lambda: told in out.read)
        log.drain()
        log.write("more\n")
        assert until(lambda: out.read.endswith(b"more\n"))
        assert out.read[filled:].startswith(LINE.encode() * kept)
        assert out.read.count(b"corepipe: ") == 1


def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    with full_pipe() as (reader, writer, filled):
        os.set_blocking(writer, False)
        log = NonBlockingLog(writer)
        log.write(LINE)
        out = Reader(reader)
        log.drain()
        assert until(lambda: out.read[filled:] == LINE.encode())
        assert log.dropped == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")  # noqa: PTH110
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    target = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        os.write(target, b"x")
    log = NonBlockingLog(target)
    log.write(LINE * 3)
    log.drain()
    assert log.dropped == 3
    reader, writer = os.pipe()
    os.dup2(writer, target)  # there is room again
    out = Reader(reader)
    log.write("after\n")
    assert until(lambda: out.read == b"after\ncorepipe: 3 lines of this log could not be written\n")
    for fd in (target, writer):
        os.close(fd)


def test_the_handler_of_a_signal_may_write() -> None:
    reader, writer = os.pipe()
    log, out = NonBlockingLog(writer), Reader(reader)
    before = signal.signal(signal.SIGUSR1, lambda *_: log.write("signal\n"))
    try:
        with log._changed:
            os.kill(os.getpid(), signal.SIGUSR1)
            log.write("main\n")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert until(lambda: sorted(out.read.split()) == [b"main", b"signal"])
    log.drain()
    os.close(writer)
