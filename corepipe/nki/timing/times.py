"""The times of a run: when each instruction ran, and the sums of engines, lines and traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.nki.core.buffers import Buffer
from corepipe.nki.core.errors import Site
from corepipe.nki.core.instructions import Engine


@dataclass(frozen=True, slots=True)
class Span:
    """An instruction on its engine; seconds from the start of the kernel.

    `queue` numbers the DMA queue; 0 for engines.
    """

    op: str
    engine: Engine
    queue: int
    start: float
    end: float
    site: Site


@dataclass(frozen=True, slots=True)
class Gap:
    """Turns of a long loop of which no span is kept, since they are like those before; seconds."""

    turns: int
    start: float
    end: float
    site: Site


@dataclass(frozen=True, slots=True)
class EngineTime:
    """The work of an engine: seconds that it was busy, and its instructions."""

    busy: float
    instructions: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between HBM and the core; spills and reloads are part of written and read."""

    read: int
    written: int
    spilled: int
    reloaded: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most of a memory is taken: the line, and the largest tensors then, each with its
    bytes a partition."""

    site: Site
    largest: Sequence[tuple[Buffer, int]] = field(repr=False, default=())


@dataclass(frozen=True, slots=True)
class Memory:
    """The most bytes of a partition that are alive at a time, and what there is.

    Legacy kernels may take more than there is as they are written: what is alive beyond the limit is spilled.
    """

    sbuf: int
    psum: int
    sbuf_limit: int
    psum_limit: int
    sbuf_peak: Peak | None = None
    psum_peak: Peak | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one run.

    seconds: from the start to the end of the kernel on the device, as `nki.benchmark` counts.  low, high: an
    interval; `known` says in words what it rests on.  lines: seconds by the line of the source, the busy
    times of all engines.  bound: the engine or the wait that sets the time.  spans: what was simulated, by
    start; turns that were extrapolated are not in it, but in `gaps`.
    """

    seconds: float
    low: float
    high: float
    known: str
    engines: Mapping[Engine, EngineTime]
    lines: Mapping[Site, float]
    traffic: Traffic
    memory: Memory
    bound: str
    spans: Sequence[Span] = field(repr=False, default=())
    gaps: Sequence[Gap] = field(repr=False, default=())
