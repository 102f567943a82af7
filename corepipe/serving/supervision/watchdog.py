"""A watchdog that tells an engine that hangs from one with much work or with little processor time.

A working engine beats (`heartbeat`): after each part of an Op, and at least four times a second without work.
One that does not beat is judged by its threads.  If all of them sleep or are stopped, it hangs.  If one runs,
the engine has a long limit, in its own processor time: on a busy machine it may wait for a processor for any
time.  If one waits for a disk, the same limit holds between two moments of processor time.
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
"""The time between two looks at the heartbeat."""

SUSPICIOUS_SECONDS = 0.5
"""The time without a beat after which the threads are looked at: twice the interval of an idle engine."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Limits in seconds without a beat after which an engine hangs.

    still: while all threads sleep or are stopped, and none has run.  busy: the processor time of a thread, or
    the time of waiting for a disk and nothing else.
    """

    still: float
    busy: float


SERVING = HangLimits(still=1.0, busy=20.0)
"""An idle engine beats four times a second; the longest part of an Op takes well under a second."""


@dataclass(frozen=True, slots=True)
class ThreadStates:
    """The threads of a process at a moment.  running: one runs or is ready to.  waiting: one waits for a
    disk. seconds: the processor time of each thread, by its id."""

    running: bool
    waiting: bool
    seconds: Mapping[int, float]

    def since(self, before: ThreadStates) -> float:
        """Returns the most processor time that one thread has had since `before`, in seconds."""
        known = before.seconds
        return max((now - known.get(thread, now) for thread, now in self.seconds.items()), default=0.0)


class Watchdog:
    """Watches the number that `read` returns; calls `look` when that has not changed for some time."""

    def __init__(self, read: Callable[[], int], look: Callable[[], ThreadStates], limits: HangLimits) -> None:
        self._read = read
        self._look = look
        self._limits = limits
        self._begin(read())

    def hangs(self, elapsed: float) -> bool:
        """Looks at the number, `elapsed` seconds after the last look.  Returns whether the engine hangs.

        A late look counts as two ticks at most: then the server stood still as well, and the engine may not
        have had time to run.
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
    """Reads the threads of a process (proc_pid_stat(5)); of one that is gone, no thread runs.

    Systems that do not show threads count as one thread that waits for a disk.
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
