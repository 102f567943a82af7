"""The timeline of a profiled run: for each core its steps, layers and Ops, and the work of each engine.

The first process is the replica: a step's parts one after the other, which add up to the step's time.  The
first track of a core has the Ops of its critical path, which add up to the stage's time; a core that is done
before the slowest of its stage waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from corepipe.neuron.compile.program import Program
from corepipe.neuron.ops import AllGather, AllReduce, Op, Receive, Send
from corepipe.neuron.timing.cost import OpTime
from corepipe.neuron.timing.trace import Arg, PerfettoTrace, Slice, TraceCounter, TraceProcess, Track
from corepipe.planning.profiling.profile import ProfileRun, ProfileStep

ENGINES = {
    "tensor": "TensorE",
    "vector": "VectorE",
    "scalar": "ScalarE",
    "gpsimd": "GpSimdE",
    "dma": "DMA",
    "collectives": "CC",
}
"""Names of the engines' tracks, from top to bottom."""

NANOSECOND = 1e-9
"""Resolution of the timeline: shorter times are rounding errors."""

MOST_VALUES = 1000
"""A number above that of the values that a stage hands over in a step."""

IN_LAYER = re.compile(r"^.*?\.\d+\.")
"""The prefix of a checkpoint's names before the module's name within its layer."""

NamedTime = tuple[str, OpTime, dict[str, Arg]]
"""An Op's name, its time, and the arguments of its slice."""


def build(run: ProfileRun) -> PerfettoTrace:
    """Returns the trace of all cores of replica 0."""
    return PerfettoTrace([_replica(run), *(_core(run, program) for program in run.programs)])


def _replica(run: ProfileRun) -> TraceProcess:
    name = f"{run.graph.name} on {run.setup.instance.name} ({run.setup.instance.standing})"
    return TraceProcess(name, [Track("steps", [_whole(run, step) for step in run.steps])])


def _whole(run: ProfileRun, step: ProfileStep) -> Slice:
    shape = step.shape
    args: dict[str, Arg] = {"rows": shape.rows, "sequences": shape.sequences, "kv_tokens": shape.kv_tokens}
    parts = tuple(_parts(run, step))
    return Slice(step.name, step.submitted, step.timing.ready_at, args | {"emulated": True}, parts)


def _parts(run: ProfileRun, step: ProfileStep) -> Iterator[Slice]:
    """Yields host, stages and hand-overs, without a gap."""
    at = step.submitted
    for stage in range(run.cost.stages):
        start, end = _stage_span(run, step, stage)
        if start > at:
            yield Slice(f"hand-over to stage {stage}" if stage else "host", at, start)
        yield Slice(f"stage {stage}", start, end)
        at = end
    if step.timing.ready_at > at:
        yield Slice("sampling on the host", at, step.timing.ready_at)


def _stage_span(run: ProfileRun, step: ProfileStep, stage: int) -> tuple[float, float]:
    _, start, end = step.timing.spans[stage * run.cost.tensor]
    return start, end


def _core(run: ProfileRun, program: Program) -> TraceProcess:
    parts = [_CoreStep(run, program, number) for number in range(len(run.steps))]
    tracks = [Track("steps", [part.step() for part in parts])]
    for engine, name in ENGINES.items():
        tracks.append(Track(name, [piece for part in parts for piece in part.engine(engine)]))
    bandwidth = [value for part in parts for value in part.bandwidth()]
    name = f"NC{program.core} stage {program.stage} rank {program.rank} (emulated)"
    return TraceProcess(name, tracks, [TraceCounter("HBM", "GB/s", bandwidth)])


class _CoreStep:
    """A core's part of a step, by its number."""

    def __init__(self, run: ProfileRun, program: Program, number: int) -> None:
        self._run = run
        self._program = program
        self._number = number
        self._start, self._end = _stage_span(run, run.steps[number], program.stage)
        times = run.op_times(program.core, run.steps[number])
        self._ops = [(name, time, _args(time)) for name, time in zip(op_names(program), times, strict=True)]

    def step(self) -> Slice:
        """Returns the layers and their Ops, and the rest of the stage's time."""
        children = [
            self._layer(layer, list(ops)) for layer, ops in groupby(self._ops, lambda op: op[1].op.layer)
        ]
        done = children[-1].end
        if self._end - done > NANOSECOND:
            children.append(Slice("wait for the slowest core of the stage", done, self._end))
        return Slice(self._run.steps[self._number].name, self._start, self._end, children=children)

    def engine(self, engine: str) -> Iterator[Slice]:
        """Yields the slices of one engine."""
        for name, time, args in self._ops:
            if engine in time.engines:
                start, end = time.engines[engine]
                yield Slice(name, self._start + start, self._start + end, args)

    def bandwidth(self) -> Iterator[tuple[float, float]]:
        """Yields (time, GB/s) where the rate of the DMA engines changes."""
        for _, time, _ in self._ops:
            start, end = time.engines.get("dma", (0.0, 0.0))
            if end > start:
                moved = time.hbm_read_bytes + time.hbm_write_bytes
                yield self._start + start, moved / (end - start) / 1e9
                yield self._start + end, 0.0

    def _layer(self, layer: int, ops: Sequence[NamedTime]) -> Slice:
        flows = self._flows([time for _, time, _ in ops])
        children = [
            Slice(name, self._start + time.start, self._start + time.end, args, (), *flows.get(i, ((), ())))
            for i, (name, time, args) in enumerate(ops)
        ]
        name = layer_name(layer, self._run.graph.num_layers)
        return Slice(name, children[0].start, children[-1].end, children=children)

    def _flows(self, times: Sequence[OpTime]) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Returns: index of a Send or Receive -> the flows that it sends and receives.

        A layer's nth value that is sent is the nth that the other core receives.
        """
        cores, core = len(self._run.programs), self._program.core
        sent = [i for i, time in enumerate(times) if isinstance(time.op, Send)]
        received = [i for i, time in enumerate(times) if isinstance(time.op, Receive)]

        def flow(receiver: int, n: int) -> int:
            return ((self._number * cores) + receiver) * MOST_VALUES + n + 1

        sends = {i: ((flow(core + self._run.cost.tensor, n),), ()) for n, i in enumerate(sent)}
        return sends | {i: ((), (flow(core, n),)) for n, i in enumerate(received)}


def _args(time: OpTime) -> dict[str, Arg]:
    """Returns the details that a click on a slice shows."""
    return {
        "bound_by": ENGINES[time.bound_by] if time.bound_by else "nothing",
        "flops": time.flops,
        "hbm_read_bytes": time.hbm_read_bytes,
        "hbm_write_bytes": time.hbm_write_bytes,
    }


def op_names(program: Program) -> list[str]:
    """Returns a name for each Op of the Program, such as "L3 Linear self_attn.q_proj"."""
    makers: dict[int, str] = {}
    names = []
    for op in program.ops:
        makers[op.out.id] = _what(op, makers)
        where = f"L{op.layer}" if op.layer in program.layers else ""
        names.append(" ".join(filter(None, (where, type(op).__name__, makers[op.out.id]))))
    return names


def layer_name(layer: int, layers: int) -> str:
    """Returns the name of a layer's slice."""
    if layer < 0:
        return "embedding"
    return f"layer {layer}" if layer < layers else "head"


def _what(op: Op, makers: dict[int, str]) -> str:
    """Returns the module of the Op's weight; for a collective the module whose result it takes."""
    if op.weights:
        return IN_LAYER.sub("", op.weights[0].name).removesuffix(".weight")
    match op:
        case AllReduce() | AllGather():
            return makers[op.x.id]
        case Send() | Receive():
            return f"core {op.peer}"
        case _:
            return ""
