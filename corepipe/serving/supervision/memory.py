"""The use of a container's memory limit; beyond it the kernel kills processes.

Control groups, version 2 (docs.kernel.org/admin-guide/cgroup-v2.html): `memory.max` is the limit,
`memory.current` what is charged to the group, and of that `inactive_file` in `memory.stat` is page cache that
the kernel takes back first.  The rest is what Kubernetes calls the working set.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil

GROUP = Path("/sys/fs/cgroup")

FULL_SHARE = 0.9
"""The share of the limit from which on requests are refused."""

LOOK_SECONDS = 1.0
"""The time for which a measurement is valid."""


class MemoryGuard:
    """Tells whether the control group of server and engine is nearly full; without a limit it never is."""

    def __init__(self, group: Path = GROUP) -> None:
        self._group = group
        self._limit = _limit(group)
        self._looked = float("-inf")
        self._full = False

    def full(self, now: float) -> bool:
        """Tells whether it was full at the last measurement, at most `LOOK_SECONDS` before `now`."""
        if self._limit is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._full = _working_set(self._group) >= FULL_SHARE * self._limit
        return self._full


def free_memory(group: Path = GROUP) -> int:
    """Returns the bytes that this machine, and its control group, have free."""
    free = psutil.virtual_memory().available
    limit = _limit(group)
    return free if limit is None else min(free, max(0, limit - _working_set(group)))


def _working_set(group: Path) -> int:
    current = int((group / "memory.current").read_text())
    idle = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    return current - (int(idle[1]) if idle else 0)


def _limit(group: Path) -> int | None:
    """Reads the limit in bytes; None where there is no limit, or no such control group."""
    try:
        text = (group / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
