"""Memory that an engine counts in and its server reads: whether the engine gets on, told without a message.

It has two counters, each written by one thread: one grows with every turn of the engine's loop, also while
that waits for commands; the other is the native executor's, and grows while a batch is computed.
"""

from __future__ import annotations

import mmap
import os
import tempfile

Counter = memoryview
"""Of one int64, [1]."""

BEAT_SECONDS = 0.25
"""The longest that an engine without work goes without a beat."""

_BYTES = 4096
_LOOP, _NATIVE = 0, 8
"""Places of the counters, in int64: cache lines of their own."""


class Heartbeat:
    """One end of the memory behind the file descriptor `fd`, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, _BYTES)).cast("q")
        self.native: Counter = self._counts[_NATIVE : _NATIVE + 1]

    def beat(self) -> None:
        """The engine's loop is alive."""
        self._counts[_LOOP] += 1

    def read(self) -> int:
        """A number that changes as long as the engine gets on."""
        return self._counts[_LOOP] + self._counts[_NATIVE]


def make_heartbeat() -> int:
    """A file descriptor of new, zeroed memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("corepipe-heartbeat")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _BYTES)
    return fd
