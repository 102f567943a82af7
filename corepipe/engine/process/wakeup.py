"""Lets a thread that mostly waits run as soon as it wakes, though computing threads keep every core busy."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SLICE_NANOSECONDS = 100_000
"""The shortest slice that Linux gives; the usual one is about 3 ms, and a thread that waits for its end is so
late."""

SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, by machine."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""Linux's struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period."""


def wake_promptly() -> bool:
    """Asks Linux to let the calling thread interrupt others when it wakes; returns whether it could be asked.

    Where the device sets the pace, a batch is completed on time while the next one is being computed on all
    cores. Linux 6.12 and later take a thread's own slice (sched_setattr's runtime, without a right to it
    being needed) and prefer the shorter; earlier ones ignore it.
    """
    number = SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NANOSECONDS, 0, 0)
    failed: int = ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    return failed == 0
