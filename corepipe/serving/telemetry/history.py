"""What counters did in the last few seconds, for gauges that any number of readers may ask for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW_SECONDS = 5.0
"""As neuron-monitor's default period."""

STEP_SECONDS = 0.25
"""Values closer than this take each other's place."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class CounterChange(Generic[Value]):
    """Two readings of counters, `apart` seconds from one another.

    `passed` is how much of the window they stand for, where each change of the counters is read at once.
    """

    before: Value
    after: Value
    apart: float
    passed: float


class History(Generic[Value]):
    """Readings of counters, of which as many are kept as the window needs."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Value]] = deque()

    def add(self, now: float, value: Value) -> None:
        """The latest reading."""
        if len(self._kept) > 1 and now - self._kept[-2][0] < STEP_SECONDS:
            self._kept.pop()
        self._kept.append((now, value))
        self._forget(now)

    def clear(self) -> None:
        """The counters have started anew."""
        self._kept.clear()

    def change(self, now: float) -> CounterChange[Value] | None:
        """Over the window that ends now; None where there is but one reading in all."""
        self._forget(now)
        if len(self._kept) < 2:
            return None
        (began, before), (ended, after) = self._kept[0], self._kept[-1]
        return CounterChange(before, after, ended - began, min(now - began, WINDOW_SECONDS))

    def _forget(self, now: float) -> None:
        """Drops what is older than the reading that held when the window began."""
        while len(self._kept) > 1 and self._kept[1][0] <= now - WINDOW_SECONDS:
            self._kept.popleft()
