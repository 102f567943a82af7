"""Spans of core time: collected with a bound, written for Perfetto, measured for how full the pipe was."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
    """Core `core` runs batch number `batch` in [start, end) seconds of device time."""

    core: int
    batch: int
    start: float
    end: float
    name: str


class Trace:
    """The latest `limit` spans; `dropped` counts the older ones that had to go."""

    def __init__(self, limit: int = 1_000_000) -> None:
        if limit < 1:
            raise ValueError(f"a trace needs room for a span, not {limit}")
        self._spans: deque[Span] = deque(maxlen=limit)
        self.dropped = 0

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    def add(self, batch: int, spans: Iterable[tuple[int, float, float]], name: str) -> None:
        """Adds the (core, start, end) spans of a batch, as `Timing.spans` has them."""
        for core, start, end in spans:
            self.dropped += len(self._spans) == self._spans.maxlen
            self._spans.append(Span(core, batch, start, end, name))

    def to_json(self, process: str = "emulated NeuronCores") -> str:
        """Trace events as Perfetto and chrome://tracing read them: one thread a core, microseconds."""
        cores = sorted({span.core for span in self._spans})
        events = [_name("process_name", 0, process), *(_name("thread_name", c, f"NC{c}") for c in cores)]
        events += [_event(span) for span in self._spans]
        about = {"emulated": True, "dropped_spans": self.dropped}
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})

    def write(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")


def _name(kind: str, core: int, text: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": 0, "tid": core, "args": {"name": text}}


def _event(span: Span) -> dict[str, object]:
    return {
        "ph": "X",
        "name": span.name,
        "pid": 0,
        "tid": span.core,
        "ts": span.start * 1e6,
        "dur": (span.end - span.start) * 1e6,
        "args": {"batch": span.batch},
    }


def busy_cores(spans: Sequence[Span], start: float, end: float) -> dict[int, float]:
    """Seconds of [start, end) for each number of cores busy at once, 0 included.

    The spans of one core must not overlap.  Raises ValueError for an empty interval.
    """
    if not end > start:
        raise ValueError(f"empty interval [{start}, {end})")
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
