"""Spans of core time, and the number of cores that were busy at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Core `core` runs batch number `batch` in [start, end) seconds of device time."""

    core: int
    batch: int
    start: float
    end: float

    @classmethod
    def of(cls, batch: int, spans: Iterable[tuple[int, float, float]]) -> list[Span]:
        """From the (core, start, end) spans of a `Timing`."""
        return [cls(core, batch, start, end) for core, start, end in spans]


def busy_cores(spans: Sequence[Span], start: float, end: float) -> dict[int, float]:
    """Seconds of [start, end) for each number of cores busy at once, 0 included.

    The spans of one core must not overlap.
    """
    changes = [(max(s.start, start), 1) for s in spans if s.start < end and s.end > start]
    changes += [(min(s.end, end), -1) for s in spans if s.start < end and s.end > start]
    seconds: dict[int, float] = {}
    busy, since = 0, start
    for at, change in (*sorted(changes), (end, 0)):
        if at > since:
            seconds[busy] = seconds.get(busy, 0.0) + at - since
        busy, since = busy + change, at
    return seconds


def pipe_fill(spans: Sequence[Span], cores: int, start: float, end: float) -> float:
    """Share of [start, end) in which all `cores` are busy."""
    return busy_cores(spans, start, end).get(cores, 0.0) / (end - start)
