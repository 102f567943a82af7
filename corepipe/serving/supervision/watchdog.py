"""Tells an engine that hangs from one that has a lot to do.

An engine that gets on beats (`pulse`): after each part of an Op, and at least four times a second without
work.  One that does not beat is judged by its threads: where one of them runs, or waits for a disk, it may be
short of processor time or paging weights in, and is given long.  Where all sleep or are stopped nothing will
ever come of it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

TICK_SECONDS = 0.1
"""Between two looks at the pulse."""

STILL_SECONDS = 1.0
"""Without a beat, all threads asleep or stopped: four times what an idle engine takes."""

BUSY_SECONDS = 20.0
"""Without a beat, a thread at work: the longest part of an Op takes well under a second."""


class Watchdog:
    """Counts how long `read` has given the same number; `busy` is asked where that has become suspicious."""

    def __init__(self, read: Callable[[], int], busy: Callable[[], bool]) -> None:
        self._read = read
        self._busy = busy
        self._last = read()
        self._silence = 0.0

    def hangs(self, elapsed: float) -> bool:
        """Another look, `elapsed` seconds after the last; whether the engine hangs.

        A look that comes late counts as two at most: the server stood still as well, and the engine may not
        have had its time yet.
        """
        beats = self._read()
        if beats != self._last:
            self._last, self._silence = beats, 0.0
            return False
        self._silence += min(elapsed, 2 * TICK_SECONDS)
        return self._silence >= STILL_SECONDS and (self._silence >= BUSY_SECONDS or not self._busy())


def at_work(pid: int) -> bool:
    """Whether a thread of the process runs, wants to, or waits for a disk (proc_pid_stat(5): R and D).

    True where that cannot be told.
    """
    if sys.platform != "linux":
        return True
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            if task.read_bytes().rpartition(b") ")[2][:1] in b"RD":
                return True
    return False
