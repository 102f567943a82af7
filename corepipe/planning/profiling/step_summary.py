"""A profiled run in neuron-profile's terms: the fields of its summary, for a step of each phase.

Bytes, FLOPs and instructions are sums over the replica's cores; active times and percentages are means over
them, of the whole step: a core that waits is idle.  The peaks are those of the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from corepipe.neuron.timing.cost import OpTime
from corepipe.planning.profiling.instructions import matmul_instructions
from corepipe.planning.profiling.profile import Phase, ProfileRun, ProfileStep


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of a step: seconds, bytes, percent.  Names and meanings are neuron-profile's."""

    total_time: float
    model_flops: float
    hardware_flops: float
    mm_arithmetic_intensity: float
    mfu_estimated_percent: float
    hfu_estimated_percent: float
    mbu_estimated_percent: float
    tensor_engine_active_time: float
    tensor_engine_active_time_percent: float
    vector_engine_active_time: float
    vector_engine_active_time_percent: float
    scalar_engine_active_time: float
    scalar_engine_active_time_percent: float
    gpsimd_engine_active_time: float
    gpsimd_engine_active_time_percent: float
    dma_active_time: float
    dma_active_time_percent: float
    cc_op_active_time: float
    cc_op_active_time_percent: float
    hbm_read_bytes: float
    hbm_write_bytes: float
    weight_size_bytes: float
    matmul_instruction_count: float


ENGINE_FIELDS = {
    "tensor": "tensor_engine",
    "vector": "vector_engine",
    "scalar": "scalar_engine",
    "gpsimd": "gpsimd_engine",
    "dma": "dma",
    "collectives": "cc_op",
}
"""Engines as `OpTime` names them -> prefixes of the summary's fields."""


class Cause(StrEnum):
    """Causes of time on the critical path of a step."""

    WEIGHTS = "reading weights"
    KV = "reading keys and values"
    MATMUL = "TensorE"
    ELEMENTWISE = "VectorE, ScalarE and GpSimdE"
    COLLECTIVES = "collectives"
    HAND_OVER = "the hand-over between stages"
    HOST = "the host"


@dataclass(frozen=True, slots=True)
class PhaseMeasurement:
    """The mean step of a phase.  seconds: of the critical path, read: bytes of all cores, both by cause."""

    phase: Phase
    summary: Summary
    seconds: dict[Cause, float]
    read: dict[Cause, float]


def measure(run: ProfileRun, phase: Phase) -> PhaseMeasurement:
    """Measures the causes of time in the phase's steps."""
    steps = [_StepMeasurement(run, step) for step in run.of(phase)]
    summaries = [step.summary() for step in steps]
    return PhaseMeasurement(
        phase,
        Summary(*(sum(getattr(s, f.name) for s in summaries) / len(steps) for f in fields(Summary))),
        _mean([step.seconds() for step in steps]),
        _mean([step.read() for step in steps]),
    )


def _mean(parts: Sequence[dict[Cause, float]]) -> dict[Cause, float]:
    return {cause: sum(part[cause] for part in parts) / len(parts) for cause in Cause}


class _StepMeasurement:
    """One step on all cores."""

    def __init__(self, run: ProfileRun, step: ProfileStep) -> None:
        self._run = run
        self._step = step
        self._cores = [run.op_times(program.core, step) for program in run.programs]

    def summary(self) -> Summary:
        run, total = self._run, self._step.seconds
        padded = run.cost.padded(self._step.shape)
        times = [time for core in self._cores for time in core]
        read, written = sum(t.hbm_read_bytes for t in times), sum(t.hbm_write_bytes for t in times)
        model, hardware = run.model_flops(self._step.shape), sum(t.flops for t in times)
        flops, bandwidth = (total * peak for peak in _peaks(run))
        return Summary(
            total_time=total,
            model_flops=model,
            hardware_flops=hardware,
            mm_arithmetic_intensity=hardware / max(1, read + written),
            mfu_estimated_percent=100 * model / flops,
            hfu_estimated_percent=100 * hardware / flops,
            mbu_estimated_percent=100 * (read + written) / bandwidth,
            hbm_read_bytes=read,
            hbm_write_bytes=written,
            weight_size_bytes=sum(core.weights for core in run.memory.cores),
            matmul_instruction_count=sum(matmul_instructions(t.op, padded) for t in times),
            **self._active(),
        )

    def _active(self) -> dict[str, float]:
        """Returns the active time of each engine, the mean over the cores, and its share of the step."""
        busy = dict.fromkeys(ENGINE_FIELDS, 0.0)
        for core in self._cores:
            for time in core:
                for engine, (start, end) in time.engines.items():
                    busy[engine] += end - start
        seconds = {f"{name}_active_time": busy[e] / len(self._cores) for e, name in ENGINE_FIELDS.items()}
        shares = {f"{name}_percent": 100 * active / self._step.seconds for name, active in seconds.items()}
        return seconds | shares

    def seconds(self) -> dict[Cause, float]:
        """Returns the seconds of the critical path by cause: of each stage its slowest core's Ops, the
        hand-over between stages, and the host."""
        found = dict.fromkeys(Cause, 0.0)
        tensor, shape = self._run.cost.tensor, self._step.shape
        for stage in range(self._run.cost.stages):
            slowest = max(self._cores[stage * tensor : (stage + 1) * tensor], key=lambda core: core[-1].end)
            for time in slowest:
                found[_cause(time)] += time.end - time.start
            found[Cause.HAND_OVER] += self._run.cost.transfer_seconds(stage, shape)
        found[Cause.HOST] = self._step.seconds - sum(found.values())
        return found

    def read(self) -> dict[Cause, float]:
        """Returns the bytes that the cores read from memory, by cause."""
        found = dict.fromkeys(Cause, 0.0)
        for core in self._cores:
            for time in core:
                found[Cause.KV if _attends(time) else Cause.WEIGHTS] += time.hbm_read_bytes
        return found


def _attends(time: OpTime) -> bool:
    return time.op.head_layout is not None


def _cause(time: OpTime) -> Cause:
    match time.bound_by:
        case "tensor":
            return Cause.MATMUL
        case "collectives":
            return Cause.COLLECTIVES
        case "dma":
            return Cause.KV if _attends(time) else Cause.WEIGHTS
        case _:
            return Cause.ELEMENTWISE


def _peaks(run: ProfileRun) -> tuple[float, float]:
    """Returns the peak operations and bytes per second of the replica's cores; cores of one memory bank
    share its bytes."""
    instance = run.setup.instance
    banks = {instance.bank_of(program.core) for program in run.programs}
    flops = len(run.programs) * instance.peak(run.setup.format.multiplied)
    return flops, len(banks) * instance.bank_bytes_per_second
