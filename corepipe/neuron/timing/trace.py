"""The contents of a timeline: processes with tracks of nested slices, and counters.  `perfetto` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Arg = bool | int | float | str
"""A value of a slice's annotation; integers are not negative."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A period of [start, end) seconds, with `children` within it one after the other.

    `sends` and `receives` are numbers of flows: an arrow goes from the slice that sends to the one that
    receives.
    """

    name: str
    start: float
    end: float
    args: Mapping[str, Arg] = field(default_factory=dict)
    children: Sequence[Slice] = ()
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Track:
    """Slices, one after the other."""

    name: str
    slices: Sequence[Slice]


@dataclass(frozen=True, slots=True)
class TraceCounter:
    """A quantity over time: `values` are (seconds, value from then on)."""

    name: str
    unit: str
    values: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class TraceProcess:
    """A group of tracks, such as a core with its engines; the first track is shown on top."""

    name: str
    tracks: Sequence[Track]
    counters: Sequence[TraceCounter] = ()


@dataclass(frozen=True, slots=True)
class PerfettoTrace:
    """The processes of a trace file."""

    processes: Sequence[TraceProcess]
