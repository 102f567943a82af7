"""Bottlenecks of a profiled run, in words, and the changes that would help: each is tried on the model.

A change is proposed only where the run, predicted again with it, gains at least `WORTH`.  Changes that the
instance cannot hold or by which the model cannot be divided are not proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from corepipe.errors import UserError
from corepipe.neuron.chips.hardware import Support
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.memory import blocks_that_fit, measure
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.ops import AllGather, AllReduce
from corepipe.neuron.timing.cost import StepShape
from corepipe.planning.profiling.profile import Compiled, Phase, ProfileRun, ProfileSetup, compiled
from corepipe.planning.profiling.step_summary import Cause, PhaseMeasurement

NOTABLE = 0.15
"""Share of a step from which on a cause is reported; the largest always is."""

WORTH = 1.05
"""Factor of speed, or of tokens per second, from which on a change is proposed."""

PATIENCE = 1.25
"""Factor by which a larger batch may lengthen its step to be proposed."""

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A setting to change, and the factor by which that makes steps faster or gives more tokens."""

    flag: str
    text: str
    gain: float


@dataclass(frozen=True, slots=True)
class StepBottleneck:
    """A cause that takes `share` of a step of the phase; cause None: its stages wait for one another.

    `changes` would help, best first; the flags in `tried` would not.
    """

    phase: Phase
    cause: Cause | None
    share: float
    text: str
    changes: tuple[ProposedChange, ...]
    tried: tuple[str, ...]

    def __str__(self) -> str:
        if self.changes:
            return f"{self.text}; {'; '.join(change.text for change in self.changes)}"
        return f"{self.text}; {' and '.join(self.tried)} would not help" if self.tried else self.text


def bottlenecks(run: ProfileRun, measured: Iterable[PhaseMeasurement]) -> list[StepBottleneck]:
    """Returns each phase's main causes of time, the largest first, and the gain of a full pipeline."""
    trials = _Trials(run)
    return [found for phase in measured for found in _of_phase(run, phase, trials)]


def _of_phase(run: ProfileRun, measured: PhaseMeasurement, trials: _Trials) -> Iterator[StepBottleneck]:
    total = run.seconds(measured.phase)
    ranked = sorted(measured.seconds, key=lambda cause: -measured.seconds[cause])
    for cause in ranked:
        share = measured.seconds[cause] / total
        if cause is ranked[0] or share >= NOTABLE:
            text = f"{measured.phase}: {100 * share:.0f} % of the step goes to {cause}"
            detail = _detail(run, measured, cause)
            changes, tried = trials.of(measured.phase, REMEDIES[cause])
            yield StepBottleneck(measured.phase, cause, share, text + detail, changes, tried)
    if run.cost.stages > 1:
        yield _bubble(run, measured.phase)


class _Trials:
    """Runs with one thing changed, each predicted once."""

    def __init__(self, run: ProfileRun) -> None:
        self._run = run
        self._runs: dict[str, ProfileRun | None] = {}
        self._compiled: dict[tuple[str, Placement], Compiled] = {}

    def of(
        self, phase: Phase, remedies: Sequence[Remedy]
    ) -> tuple[tuple[ProposedChange, ...], tuple[str, ...]]:
        """Returns the best change of each kind that gains enough, best first, and the flags that do not."""
        changes: list[ProposedChange] = []
        tried: list[str] = []
        for remedy in remedies:
            found = [change for option in remedy(self._run.setup) if (change := self._try(phase, *option))]
            best = max(found, default=None, key=_gain)
            if best is not None and best.gain >= WORTH:
                changes.append(best)
            else:
                tried += [change.flag for change in found]
        return tuple(sorted(changes, key=_gain, reverse=True)), tuple(tried)

    def _try(self, phase: Phase, flag: str, setup: ProfileSetup) -> ProposedChange | None:
        """Predicts a change; None where it is impossible, or a larger batch delays its sequences too much."""
        if flag not in self._runs:
            self._runs[flag] = self._predict(setup)
        run = self._runs[flag]
        more = setup.batch / self._run.setup.batch
        if run is None or (more > 1 and phase is Phase.PREFILL):
            return None
        slower = run.seconds(phase) / self._run.seconds(phase)
        if more == 1:
            return ProposedChange(flag, f"{flag} would make it {_faster(1 / slower)}", 1 / slower)
        if slower > PATIENCE:
            return None
        text = f"{flag} would cost {100 * (slower - 1):.0f} % more time for {more:g} times the tokens"
        return ProposedChange(flag, text, more / slower)

    def _predict(self, setup: ProfileSetup) -> ProfileRun | None:
        """Predicts a run; None where the model cannot be divided so, does not fit, or would need kernels of
        the user for other sizes: each takes a comparison, and perhaps minutes."""
        if setup.placement.cores > setup.instance.cores or not self._keeps_kernels(setup):
            return None
        try:
            _, programs = self._compile(setup)
            cores, budget = measure(programs, setup.limits), setup.limits.kv_budget
            blocks = blocks_that_fit(cores, setup.placement.data, setup.instance, budget)
            return ProfileRun(setup, self._compile) if blocks >= setup.limits.max_blocks else None
        except UserError:
            return None

    def _keeps_kernels(self, setup: ProfileSetup) -> bool:
        """Tells whether the user's kernels, if there are any, have the same sizes and types."""
        now = self._run.setup
        same = setup.format.compute is now.format.compute and setup.placement.tensor == now.placement.tensor
        return setup.profile.kernels is None or same

    def _compile(self, setup: ProfileSetup) -> Compiled:
        key = (setup.format.name, setup.placement)
        if key not in self._compiled:
            self._compiled[key] = compiled(setup)
        return self._compiled[key]


def _gain(change: ProposedChange) -> float:
    return change.gain


def _faster(gain: float) -> str:
    return f"{gain:.1f} times as fast" if gain >= 1.5 else f"{100 - 100 / gain:.0f} % shorter"


Options = Iterator[tuple[str, ProfileSetup]]
Remedy = Callable[[ProfileSetup], Options]
"""Returns the changes of one kind: the flag and the setup that it makes."""


def _larger_batches(setup: ProfileSetup) -> Options:
    for batch in BATCHES:
        if batch > setup.batch:
            yield f"--batch {batch}", replace(setup, batch=batch)


def _tensors(setup: ProfileSetup, degrees: Iterable[int]) -> Options:
    for degree in degrees:
        yield f"--tensor {degree}", replace(setup, placement=replace(setup.placement, tensor=degree))


def _more_tensor(setup: ProfileSetup) -> Options:
    return _tensors(setup, (d for d in setup.instance.tensor_degrees if d > setup.placement.tensor))


def _less_tensor(setup: ProfileSetup) -> Options:
    return _tensors(setup, (d for d in setup.instance.tensor_degrees if d < setup.placement.tensor))


def _pipelines(setup: ProfileSetup, *, deeper: bool) -> Options:
    layers = setup.architecture.graph(setup.format).num_layers
    depths = dict.fromkeys((*(2**i for i in range(layers.bit_length())), layers))
    for depth in depths:
        if depth != setup.placement.pipeline and (depth > setup.placement.pipeline) is deeper:
            yield f"--pipeline {depth}", replace(setup, placement=replace(setup.placement, pipeline=depth))


def _deeper_pipelines(setup: ProfileSetup) -> Options:
    """Yields deeper pipelines, where cores keep weights on chip."""
    return (
        iter(()) if setup.instance.chip.core.resident_weight_bytes is None else _pipelines(setup, deeper=True)
    )


def _shallower_pipelines(setup: ProfileSetup) -> Options:
    return _pipelines(setup, deeper=False)


def _formats(setup: ProfileSetup) -> Options:
    for name, fmt in FORMATS.items():
        if fmt != setup.format and setup.instance.support(fmt) is Support.NATIVE:
            yield f"--dtype {name}", replace(setup, format=fmt)


def _profiles(setup: ProfileSetup) -> Options:
    for name, profile in PROFILES.items():
        other = profile.with_kernels(setup.profile.kernels)
        if other != setup.profile:
            yield f"--profile {name}", replace(setup, profile=other)


REMEDIES: Mapping[Cause, Sequence[Remedy]] = MappingProxyType(
    {
        Cause.WEIGHTS: (_larger_batches, _deeper_pipelines, _more_tensor, _formats),
        Cause.KV: (_more_tensor,),
        Cause.MATMUL: (_more_tensor, _formats),
        Cause.ELEMENTWISE: (_larger_batches, _more_tensor),
        Cause.COLLECTIVES: (_larger_batches, _less_tensor),
        Cause.HAND_OVER: (_larger_batches, _shallower_pipelines),
        Cause.HOST: (_larger_batches, _profiles),
    }
)
"""Remedies that may help against each cause: of each kind the best is proposed."""


def _detail(run: ProfileRun, measured: PhaseMeasurement, cause: Cause) -> str:
    """Returns the cause in numbers; empty where its share is enough."""
    summary, shape = measured.summary, run.of(measured.phase)[0].shape
    match cause:
        case Cause.WEIGHTS | Cause.KV:
            read = f"{_size(measured.read[cause])} for {shape.rows} tokens of {shape.sequences} sequences"
            return f": {read}, HBM at {summary.mbu_estimated_percent:.0f} % of its bandwidth"
        case Cause.MATMUL:
            return f": the model's FLOPs are {summary.mfu_estimated_percent:.2g} % of the peak's"
        case Cause.COLLECTIVES:
            return f": {_collectives(run, measured.phase)}"
        case Cause.HOST:
            return f": {1e6 * measured.seconds[cause]:.0f} us with profile {run.setup.profile.name}"
        case Cause.ELEMENTWISE | Cause.HAND_OVER:
            return ""


def _collectives(run: ProfileRun, phase: Phase) -> str:
    """Returns number and size of collectives, and whether latency (a single row's time) bounds them."""
    step = run.of(phase)[0]
    lone = run.cost.op_times(0, StepShape.decode(1, 1))
    pairs = [
        (time, least)
        for time, least in zip(run.op_times(0, step), lone, strict=True)
        if isinstance(time.op, AllReduce | AllGather)
    ]
    seconds, floor = (sum(time.end - time.start for time in column) for column in zip(*pairs, strict=True))
    rows, element = run.cost.padded(step.shape), run.setup.format.compute.bytes
    largest = max(rows.rows_of(time.op.out.rows.number) * time.op.out.width * element for time, _ in pairs)
    bound = "latency" if floor > seconds / 2 else "bandwidth"
    each = 1e6 * seconds / len(pairs)
    return f"{len(pairs)} of up to {_size(largest)}, {each:.0f} us each, bound by {bound}"


def _bubble(run: ProfileRun, phase: Phase) -> StepBottleneck:
    """Returns the bottleneck of a pipeline with one batch in flight, where all stages but one wait.  A
    full pipeline completes a batch in the time of its slowest stage."""
    shape, total = run.of(phase)[0].shape, run.seconds(phase)
    stages, slowest = run.cost.stage_seconds(shape), max(run.full_pipe.stage_seconds(shape))
    idle = 1 - sum(stages) / (len(stages) * total)
    gain = total / slowest
    text = f"{phase}: a stage is idle {100 * idle:.0f} % of the step, with one batch in flight"
    change = ProposedChange(
        "", f"{len(stages)} batches in flight would give {gain:.1f} times the tokens a second", gain
    )
    return StepBottleneck(phase, None, idle, text, (change,), ())


def _size(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
