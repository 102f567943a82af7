"""Tells an engine that hangs from one that has a lot to do, or little time of a processor to do it in.

An engine that gets on beats (`heartbeat`): after each part of an Op, and at least four times a second without
work.  One that does not beat is judged by its threads.  Where all sleep or are stopped nothing will ever come
of it.  Where one runs it has long, in its own processor time: on a busy machine it may wait for a processor
for as long as it likes.  Where one waits for a disk it has as long between two moments of processor time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

TICK_SECONDS = 0.1
"""Between two looks at the heartbeat."""

SUSPICIOUS_SECONDS = 0.5
"""Without a beat, from which on the threads are looked at: twice what an idle engine takes."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds without a beat after which an engine hangs.

    still: all threads asleep or stopped, none has had a processor.  busy: of processor time that a thread has
    had, or of waiting for a disk and nothing else.
    """

    still: float
    busy: float


SERVING = HangLimits(still=1.0, busy=20.0)
"""An idle engine beats four times a second; the longest part of an Op takes well under a second."""


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """A process at a moment: whether a thread runs or wants to, whether one waits for a disk, and the seconds
    of processor time that each has had."""

    running: bool
    waiting: bool
    seconds: Mapping[int, float]

    def since(self, before: ThreadStates) -> float:
        """The most that one thread has had since then."""
        known = before.seconds
        return max((now - known.get(thread, now) for thread, now in self.seconds.items()), default=0.0)


class Watchdog:
    """Watches the number that `read` gives; `look` is asked where it has become suspicious."""

    def __init__(self, read: Callable[[], int], look: Callable[[], ThreadStates], limits: HangLimits) -> None:
        self._read = read
        self._look = look
        self._limits = limits
        self._begin(read())

    def hangs(self, elapsed: float) -> bool:
        """Another look, `elapsed` seconds after the last; whether the engine hangs.

        A look that comes late counts as two at most: the server stood still as well, and the engine may not
        have had its time yet.
        """
        beats = self._read()
        if beats != self._last:
            self._begin(beats)
            return False
        pause = min(elapsed, 2 * TICK_SECONDS)
        self._silence += pause
        self._idle += pause
        return self._silence >= SUSPICIOUS_SECONDS and self._judge(self._look())

    def _begin(self, beats: int) -> None:
        self._last = beats
        self._silence = self._idle = self._used = 0.0
        self._seen: ThreadStates | None = None

    def _judge(self, seen: ThreadStates) -> bool:
        used = 0.0 if self._seen is None else seen.since(self._seen)
        self._seen = seen
        if used > 0.0:
            self._idle = 0.0
        self._used += used
        if seen.running or self._used >= self._limits.busy:
            return self._used >= self._limits.busy
        return self._idle >= (self._limits.busy if seen.waiting else self._limits.still)


def look_at(pid: int) -> ThreadStates:
    """The threads of a process (proc_pid_stat(5)); where they cannot be told from each other, one that waits.

    Of a process that is gone nothing runs.
    """
    if sys.platform != "linux":
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            return ThreadStates(running=False, waiting=True, seconds={pid: times.user + times.system})
        return ThreadStates(running=False, waiting=False, seconds={})
    ticks = os.sysconf("SC_CLK_TCK")
    states, seconds = set(), {}
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = task.read_bytes().rpartition(b") ")[2].split()
            states.add(fields[0])
            seconds[int(task.parent.name)] = (int(fields[11]) + int(fields[12])) / ticks
    return ThreadStates(b"R" in states, b"D" in states, seconds)
