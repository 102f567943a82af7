"""Host, paced and virtual time behind one interface.

The same code runs with each of them: only the clock differs.  Times are seconds since the clock was made;
those of the emulated device, where it sets the pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

SPIN_SECONDS = 2e-4
"""End of a wait that is spun: a sleep on Linux overshoots by 50-150 us."""


LATE_SECONDS = 1e-3
"""Host time that waking up and bookkeeping may take.  A host that cannot keep up falls behind by more: its
delay in one step is added to the next."""


class Clock(Protocol):
    """The source of time of a loop.

    paced: the device decides when a result may leave; otherwise it leaves when the host has it, and the
    device's time is only reported.
    virtual: the host's work takes no time.
    """

    @property
    def paced(self) -> bool: ...

    @property
    def virtual(self) -> bool: ...

    def now(self) -> float:
        """Returns seconds since the start; never falls."""

    def wait_until(self, t: float) -> None:
        """Returns when a result that the device finishes at `t` may be used."""

    def host_seconds_until(self, t: float) -> float:
        """Returns the host seconds to wait for an event at `t`."""

    def behind(self, t: float) -> float | None:
        """Returns the host seconds by which a result due at `t` on the device is late; None where it never
        can be."""


class HostClock:
    """Runs as fast as the host can: the device's times are reported, never waited for."""

    paced = False
    virtual = False

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self._read = read
        self._start = read()

    def now(self) -> float:
        return self._read() - self._start

    def wait_until(self, t: float) -> None:
        """Returns at once: on the host a result is ready when it has been computed."""

    def host_seconds_until(self, t: float) -> float:
        return max(0.0, t - self.now())

    def behind(self, t: float) -> None:
        """Returns None: the host sets the pace."""


class PacedClock:
    """Makes each step last as long as on the device; `scale` host seconds pass for one second of the device.

    Raises ValueError for a scale that is not positive and finite.
    """

    paced = True
    virtual = False

    def __init__(
        self,
        scale: float = 1.0,
        read: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 < scale < inf:
            raise ValueError(f"time scale must be positive, not {scale}")
        self.scale = scale
        self._read = read
        self._sleep = sleep
        self._start = read()

    def now(self) -> float:
        return (self._read() - self._start) / self.scale

    def wait_until(self, t: float) -> None:
        rest = (t - self.now()) * self.scale
        if rest > SPIN_SECONDS:
            self._sleep(rest - SPIN_SECONDS)
        while self.now() < t:
            self._sleep(0)

    def host_seconds_until(self, t: float) -> float:
        return max(0.0, t - self.now()) * self.scale

    def behind(self, t: float) -> float:
        return max(0.0, (self.now() - t) * self.scale)


class VirtualClock:
    """Never waits: the time is the last one that was waited for."""

    paced = True
    virtual = True

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, t: float) -> None:
        self._now = max(self._now, t)

    def host_seconds_until(self, t: float) -> float:  # noqa: ARG002 -- never waits
        return 0.0

    def behind(self, t: float) -> None:
        """Returns None: the host takes no time."""
