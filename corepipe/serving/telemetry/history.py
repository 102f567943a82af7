"""The change of counters over the last seconds, for gauges that any number of readers may read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW_SECONDS = 5.0
"""The window of the gauges, equal to neuron-monitor's default period."""

STEP_SECONDS = 0.25
"""The smallest distance of kept readings; a later one within it replaces the earlier one."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CounterChange(Generic[Value]):
    """Two readings of counters that are `apart` seconds from each other.

    `passed` is the part of the window that they cover, in seconds, where each change of the counters is read
    at once.
    """

    before: Value
    after: Value
    apart: float
    passed: float


class History(Generic[Value]):
    """Keeps as many readings of counters as the window needs."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Value]] = deque()

    def add(self, now: float, value: Value) -> None:
        """Adds the latest reading."""
        if len(self._kept) > 1 and now - self._kept[-2][0] < STEP_SECONDS:
            self._kept.pop()
        self._kept.append((now, value))
        self._forget(now)

    def clear(self) -> None:
        """Forgets all readings: the counters have started anew."""
        self._kept.clear()

    def change(self, now: float) -> CounterChange[Value] | None:
        """Returns the change over the window that ends at `now`; None where there is only one reading."""
        self._forget(now)
        if len(self._kept) < 2:
            return None
        (began, before), (ended, after) = self._kept[0], self._kept[-1]
        return CounterChange(before, after, ended - began, min(now - began, WINDOW_SECONDS))

    def _forget(self, now: float) -> None:
        """Drops the readings before the one that was valid when the window began."""
        while len(self._kept) > 1 and self._kept[1][0] <= now - WINDOW_SECONDS:
            self._kept.popleft()
