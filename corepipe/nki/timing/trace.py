"""The time line of a kernel, as a file for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from corepipe.neuron.timing.perfetto import write
from corepipe.neuron.timing.trace import PerfettoTrace, Slice, TraceCounter, TraceProcess, Track
from corepipe.nki.core.instructions import Engine
from corepipe.nki.timing.times import Gap, Span, Times


def save_trace(times: Times, path: str | Path) -> int:
    """Writes the time line of a kernel and returns the size of the file in bytes."""
    return write(trace(times), Path(path))


def trace(times: Times) -> PerfettoTrace:
    """Returns a track for each engine and DMA queue, and one for the turns that were extrapolated: they are
    gaps in the others."""
    tracks = [
        Track(name, tuple(_slices(spans)))
        for engine in Engine
        for name, spans in _queues(engine, [s for s in times.spans if s.engine is engine])
    ]
    if times.gaps:
        tracks.append(Track("turns like those before", tuple(_left_out(times.gaps))))
    counters = (
        TraceCounter("SBUF, most in use", "bytes", ((0.0, times.memory.sbuf),)),
        TraceCounter("PSUM, most in use", "bytes", ((0.0, times.memory.psum),)),
        TraceCounter("DMA in flight", "transfers", tuple(_in_flight(times.spans))),
    )
    return PerfettoTrace((TraceProcess("NeuronCore", tracks, counters),))


def _queues(engine: Engine, spans: Sequence[Span]) -> Iterable[tuple[str, list[Span]]]:
    """Yields the tracks of an engine: spans that overlap go to different queues."""
    queues: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s.start):
        free = next((q for q in queues if q[-1].end <= span.start + 1e-12), None)
        if free is None:
            queues.append([span])
        else:
            free.append(span)
    for number, queue in enumerate(queues):
        yield (f"{engine} {number}" if len(queues) > 1 else str(engine)), queue


def _slices(spans: Iterable[Span]) -> Iterable[Slice]:
    for span in spans:
        yield Slice(span.op, span.start, span.end, {"line": str(span.site)})


def _left_out(gaps: Sequence[Gap]) -> Iterable[Slice]:
    for gap in gaps:
        yield Slice(f"{gap.turns} turns", gap.start, gap.end, {"line": str(gap.site)})


def _in_flight(spans: Sequence[Span]) -> Iterable[tuple[float, float]]:
    """Yields the number of transfers that move data, whenever it changes."""
    changes = sorted(
        (time, change)
        for span in spans
        if span.engine is Engine.DMA
        for time, change in ((span.start, 1), (span.end, -1))
    )
    count = 0
    for time, change in changes:
        count += change
        yield time, count
