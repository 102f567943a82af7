"""The use of the host's CPUs and memory: by all processes, and by the engine's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from corepipe.serving.telemetry.observer import CounterChange, History

Times = Mapping[str, float]
"""Processor seconds by kind of use: user, system."""


@dataclass(frozen=True, slots=True)
class HostShares:
    """The use of the host.  Shares are of all vCPUs, 0 to 1, over the last seconds; empty at the first
    reading.

    Memory and swap are in bytes.
    """

    engine: Times
    system: Times
    vcpus: int
    memory_total: int
    memory_used: int
    swap_total: int
    swap_used: int


class HostUsage:
    """Reads the host's counters at each call."""

    def __init__(self, now: float) -> None:
        self._vcpus = psutil.cpu_count() or 1
        self._process: psutil.Process | None = None
        self._engine: History[Times] = History()
        self._system: History[Times] = History()
        self._system.add(now, _system_times())

    def watch(self, pid: int, now: float) -> None:
        """Sets the engine's process; one that is gone has no figures."""
        self._engine.clear()
        try:
            self._process = psutil.Process(pid) if pid else None
            self._read_engine(now)
        except psutil.Error:
            self._process = None

    @property
    def engine_bytes(self) -> int:
        """The resident memory of the engine's process in bytes; 0 where there is none."""
        try:
            return self._process.memory_info().rss if self._process else 0
        except psutil.Error:
            return 0

    def read(self, now: float) -> HostShares:
        """Reads the figures of the host."""
        try:
            self._read_engine(now)
        except psutil.Error:
            self._engine.clear()
        self._system.add(now, _system_times())
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return HostShares(
            engine=self._shares(self._engine.change(now)),
            system=self._shares(self._system.change(now)),
            vcpus=self._vcpus,
            memory_total=memory.total,
            memory_used=memory.total - memory.available,
            swap_total=swap.total,
            swap_used=swap.used,
        )

    def _read_engine(self, now: float) -> None:
        if self._process is not None:
            times = self._process.cpu_times()
            self._engine.add(now, {"user": times.user, "system": times.system})

    def _shares(self, change: CounterChange[Times] | None) -> Times:
        if change is None or change.apart <= 0:
            return {}
        whole = change.apart * self._vcpus
        return {kind: min(1.0, (after - change.before[kind]) / whole) for kind, after in change.after.items()}


def _system_times() -> Times:
    """Reads the times as neuron-monitor adds them up: waiting for I/O counts as system time."""
    times = psutil.cpu_times()
    waits = sum(getattr(times, name, 0.0) for name in ("iowait", "irq", "softirq"))
    return {"user": times.user + getattr(times, "nice", 0.0), "system": times.system + waits}
