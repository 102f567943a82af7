"""The times of a recorded kernel: what the compiler makes of it, through the queues of a core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from corepipe.nki.core.errors import Site
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.timing.compiled import Compiled, compiled
from corepipe.nki.timing.constants import Fitted, shipped
from corepipe.nki.timing.costs import Costs
from corepipe.nki.timing.queues import Queues
from corepipe.nki.timing.queues_memory import Buffers
from corepipe.nki.timing.queues_room import Room, crowded, last_uses
from corepipe.nki.timing.times import EngineTime, Times, Traffic

BUSY_SHARE = 0.8
"""Share of the time from which an engine is what bounds a kernel."""

SHORT_SECONDS = 50e-6
"""Kernels below are dominated by starts and latencies, and predicted worse."""

ADVICE = {
    "buffer": "a buffer that is still in use: more buffers, or smaller tiles",
    "dma": "transfers: load earlier or more at a time, in rows of 2 KiB and more, or into more buffers",
    "tensor": "products: give it other work meanwhile, or larger moving tiles",
    "vector": "VectorE: move work to ScalarE, or fuse instructions",
    "scalar": "ScalarE: move work to VectorE, or fuse instructions",
    "gpsimd": "GpSimd: move work to another engine",
}
"""Causes of waits in words, with what would help."""


def timed(recorder: Recorder) -> Times:
    """Returns the times of what a run recorded."""
    return times_of(compiled(recorder), recorder, shipped()[recorder.generation])


def simulated(found: Compiled, recorder: Recorder, fitted: Fitted) -> Queues:
    """Runs a compiled kernel through the queues of its core."""
    instructions = [event for event in found.stream if isinstance(event, Instruction)]
    read = {id(r.buffer): r.buffer for i in instructions for r in i.reads}
    used = read | {id(r.buffer): r.buffer for i in instructions for r in i.writes}
    shared = crowded(found, used.values())
    room = Room(float(found.memory.sbuf_limit)) if shared else None
    queues = Queues(
        Costs(recorder.generation, fitted.constants),
        Buffers(found.copies, read.values(), room),
        reorders=recorder.legacy,
        ends=last_uses(instructions) if shared else None,
    )
    queues.run(found.stream)
    return queues


def times_of(found: Compiled, recorder: Recorder, fitted: Fitted) -> Times:
    """Returns the times of a compiled kernel with the constants of its generation."""
    queues = simulated(found, recorder, fitted)
    sums = Totals(queues.sums.values)
    seconds = queues.seconds + fitted.constants.frame_us * 1e-6
    low, high = fitted.interval[kind_of(seconds, found.traffic)]
    return Times(
        seconds,
        seconds * low,
        seconds * high,
        fitted.known,
        sums.engines,
        sums.lines,
        found.traffic,
        found.memory,
        sums.bound(queues.seconds),
        tuple(sorted(queues.spans, key=lambda span: span.start)),
        tuple(queues.gaps),
    )


def kind_of(seconds: float, traffic: Traffic) -> str:
    """Returns the kind of a kernel, by which the errors of predictions differ."""
    if seconds < SHORT_SECONDS:
        return "short"
    return "spills" if traffic.spilled else "plain"


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a simulation (`Queues.sums`), read by what they are about."""

    values: Mapping[object, float]

    @property
    def engines(self) -> dict[Engine, EngineTime]:
        """Returns the work of each engine that had any."""
        return {
            engine: EngineTime(self.values[("busy", engine)] * 1e-9, round(self.values[("count", engine)]))
            for engine in Engine
            if ("busy", engine) in self.values
        }

    @property
    def lines(self) -> dict[Site, float]:
        return {key: ns * 1e-9 for key, ns in self.values.items() if isinstance(key, Site)}

    def bound(self, seconds: float) -> str:
        """Returns the engine that is busy nearly all the time, or what the busiest one waits for."""
        engines = self.engines
        if not engines:
            return "nothing: the kernel executes no instruction"
        busiest = max(engines, key=lambda engine: engines[engine].busy)
        share = engines[busiest].busy / seconds
        if share >= BUSY_SHARE:
            return str(busiest)
        waits = {cause: self.values.get(("wait", busiest, cause), 0.0) for cause in ADVICE}
        cause = max(waits, key=waits.__getitem__)
        return (
            f"waits: {busiest}, the busiest engine, works {share:.0%} of the time; "
            f"most of the rest it waits for {ADVICE[cause]}"
        )
