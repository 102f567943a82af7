"""The resources of the host that this process may use: physical memory and CPUs, or the limits of its control
groups.

Files are as in docs.kernel.org/admin-guide/cgroup-v2.html and .../scheduler/sched-bwc.html (version 1).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")

OWN_GROUPS = Path("/proc/self/cgroup")
"""A line for each hierarchy: number, controllers, path; version 2 is number 0 and names none."""


QuotaOf = Callable[[Path], float | None]


@dataclass(frozen=True, slots=True)
class HostCpus:
    """The CPUs of the host: `count` threads can compute at a time. quota: CPUs that a control group allows,
    where that is less."""

    count: int
    quota: float | None = None

    def __str__(self) -> str:
        threads = f"{self.count} thread{'' if self.count == 1 else 's'}"
        return threads if self.quota is None else f"{threads} (a control group allows {self.quota:g} CPUs)"


def host_memory(limit: Path = CONTROL_GROUPS / "memory.max") -> int:
    """Returns the bytes of physical memory, or of the container's limit where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = _read(limit)
    return min(physical, int(text)) if text.isdecimal() else physical


def host_cpus(own: Path = OWN_GROUPS, mount: Path = CONTROL_GROUPS) -> HostCpus:
    """Returns the CPUs that this process may run on, or its least quota where that is less.

    A fraction of a CPU is not used: a thread more would be stopped for the rest of each period, and with it
    all threads that wait for it.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(_quotas(own, mount), default=float(allowed))
    return HostCpus(max(1, int(quota)), quota) if quota < allowed else HostCpus(allowed)


def _quotas(own: Path, mount: Path) -> Iterator[float]:
    """Yields the CPUs that each of this process's control groups allows, where it sets a limit."""
    for line in _read(own).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            # Version 2 alone is mounted at the top; beside version 1, where systemd puts it.
            for root in (mount, mount / "unified"):
                yield from _with_ancestors(root, path, _quota_of_version_2)
        elif "cpu" in controllers.split(","):
            for root in (mount / "cpu", mount / controllers):
                yield from _with_ancestors(root, path, _quota_of_version_1)


def _with_ancestors(root: Path, path: str, quota_of: QuotaOf) -> Iterator[float]:
    """Yields a group's quota and those of all above it. In a container the path may name a group that is not
    mounted there: its own group is then the root."""
    group = root / path.lstrip("/")
    for directory in (group, *group.parents):
        if not directory.is_relative_to(root):
            return
        quota = quota_of(directory)
        if quota is not None:
            yield quota


def _quota_of_version_2(group: Path) -> float | None:
    fields = _read(group / "cpu.max").split()
    return _ratio(*fields) if len(fields) == 2 else None


def _quota_of_version_1(group: Path) -> float | None:
    return _ratio(_read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    """Converts microseconds of CPU time in each period to CPUs; "max" and -1 stand for no limit."""
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(file: Path) -> str:
    """Returns the content of a file of the kernel; "" where it cannot be read."""
    try:
        # ast-grep-ignore: bounded-reads -- a file of the kernel
        return file.read_text().strip()
    except OSError:
        return ""
