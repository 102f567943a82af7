"""The time slice of a thread: requested where there is a system call, and nothing else changes."""

from __future__ import annotations

import os
import platform
import sys
import threading

from corepipe.engine.process.wakeup import SCHED_SETATTR, wake_promptly


def test_a_thread_asks_for_a_short_slice_and_keeps_its_priority() -> None:
    seen = []

    def ask() -> None:
        seen.extend([wake_promptly(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())])

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    known = sys.platform == "linux" and platform.machine() in SCHED_SETATTR
    assert seen == [known, before]
