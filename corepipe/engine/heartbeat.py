"""Memory in which an engine counts and which its server reads: it shows without a message whether the engine
makes progress.

It has two counters, each written by one thread: one grows with every turn of the engine's loop, also while
that waits for commands; the other is the native executor's, and grows while a batch is computed.
"""

from __future__ import annotations

import mmap
import os
import tempfile

Counter = memoryview
"""A counter of one int64, [1]."""

BEAT_SECONDS = 0.25
"""The longest time between two beats of an engine without work."""

_BYTES = 4096
_LOOP, _NATIVE = 0, 8
"""Places of the counters, in int64: each has a cache line of its own."""


class Heartbeat:
    """One end of the memory behind the file descriptor `fd`, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, _BYTES)).cast("q")
        self.native: Counter = self._counts[_NATIVE : _NATIVE + 1]

    def beat(self) -> None:
        """Counts a turn of the engine's loop."""
        self._counts[_LOOP] += 1

    def read(self) -> int:
        """Returns a number that changes as long as the engine makes progress."""
        return self._counts[_LOOP] + self._counts[_NATIVE]


def make_heartbeat() -> int:
    """Returns a file descriptor of new, zeroed memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("corepipe-heartbeat")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _BYTES)
    return fd
