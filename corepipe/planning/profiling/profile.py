"""A profile: a prefill and a few decode steps of a batch on one replica, timed Op by Op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.chips.runtime_profile import Buckets, RuntimeProfile
from corepipe.neuron.compile.memory import DeploymentLimits, plan_memory
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import Experts
from corepipe.neuron.timing import modes
from corepipe.neuron.timing.cost import CostModel, OpTime, StepShape
from corepipe.neuron.timing.otherwise import spanning
from corepipe.neuron.timing.timeline import Timeline, Timing
from corepipe.neuron.timing.uncertainty import Figure, Interval, Point, Setup, architecture_of, interval

BLOCK = 32
"""Positions in a KV block, the default of `corepipe serve`."""


class Phase(StrEnum):
    """The phase of a step: prefill computes whole prompts, decode a token for each sequence."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class ProfileSetup:
    """The input of a profile: prompts of `input_len` tokens, then `decode_steps` tokens for each of `batch`.

    max_model_len: the longest supported sequence; some software pads to it.
    """

    architecture: Architecture
    format: Format
    instance: Instance
    profile: RuntimeProfile
    batch: int
    input_len: int
    decode_steps: int
    max_model_len: int
    placement: Placement = field(default_factory=Placement)

    @property
    def prompts(self) -> int:
        """Prompts in a prefill step: the batch's, unless the software computes them one by one."""
        together = self.profile.batched_prefill or self.profile.policy == "mixed"
        return self.batch if together else 1

    @property
    def limits(self) -> DeploymentLimits:
        """The limits for memory: all sequences of the batch at their longest."""
        blocks = self.batch * -(-self.max_model_len // BLOCK)
        tokens = self.prompts * min(self.input_len, self.profile.chunk or self.input_len)
        return DeploymentLimits(self.max_model_len, self.batch, tokens, BLOCK, blocks, self.profile.kv_budget)


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """A step of all cores; it takes from `submitted` to `timing.ready_at`, the host's part included."""

    phase: Phase
    name: str
    shape: StepShape
    submitted: float
    timing: Timing

    @property
    def seconds(self) -> float:
        return self.timing.ready_at - self.submitted


Compiled = tuple[Graph, tuple[Program, ...]]


def compiled(setup: ProfileSetup) -> Compiled:
    """Returns the setup's Graph and a replica's Programs.  Raises UserError where it cannot be divided so."""
    graph = setup.architecture.graph(setup.format, setup.max_model_len)
    return graph, modes.compiler(graph, setup.instance, setup.profile)(setup.placement)


def placed(
    setup: ProfileSetup, mode: modes.Mode, degrees: modes.RequestedDegrees
) -> tuple[ProfileSetup, str]:
    """Returns the setup with the given degrees and the mode's others, and the reason.  Raises UserError."""
    graph = setup.architecture.graph(setup.format, setup.max_model_len)
    placement, reason = modes.resolve(mode, graph, setup.instance, setup.limits, setup.profile, degrees)
    return replace(setup, placement=placement), reason


class ProfileRun:
    """The steps of a setup, each submitted when the previous one is done; an encoder has the first alone.

    `cost` times such a step; `full_pipe` one that shares its memory banks with other stages' batches.
    `compile_` may reuse the Programs of another run.  Raises UserError for a model that cannot be divided so,
    or that does not fit with its batch.
    """

    def __init__(self, setup: ProfileSetup, compile_: Callable[[ProfileSetup], Compiled] = compiled) -> None:
        self.setup = setup
        self.graph, self.programs = compile_(setup)
        cut = modes.compiler(self.graph, setup.instance, setup.profile)
        self.memory = plan_memory(self.programs, setup.placement, setup.instance, setup.limits, cut)
        if self.memory.block_bytes:
            _check_batch(setup, self.memory.num_blocks)
        self.full_pipe = self._timed_with(setup.profile)
        self.cost = self.full_pipe.lone
        self.steps = tuple(_steps(setup, self.graph, Timeline(self.full_pipe)))

    def _timed_with(self, profile: RuntimeProfile) -> CostModel:
        setup = self.setup
        return CostModel(self.programs, setup.instance, profile, setup.placement.data, batch=setup.batch)

    @property
    def phases(self) -> list[Phase]:
        """The phases that have steps."""
        return [phase for phase in Phase if self.of(phase)]

    def of(self, phase: Phase) -> list[ProfileStep]:
        """Returns the steps of a phase."""
        return [step for step in self.steps if step.phase is phase]

    def seconds(self, phase: Phase) -> float:
        """Returns the mean seconds of a step of the phase."""
        steps = self.of(phase)
        return sum(step.seconds for step in steps) / len(steps)

    def interval(self, phase: Phase) -> Interval:
        """Returns the factors by which a measured step of the phase may differ."""
        setup = self.setup
        figure = Figure.DECODE if phase is Phase.DECODE else Figure.FIRST_TOKEN
        ran = Setup(architecture_of(self.graph), setup.instance.name, setup.profile, setup.placement)
        tokens = setup.input_len + setup.decode_steps
        point = Point.of(figure if self.graph.causal else Figure.BATCH, ran, tokens)
        found = interval(point, setup.profile)
        return spanning(found, setup.profile, self._timed_with, figure, setup.input_len)

    def between(self, step: ProfileStep) -> tuple[float, float]:
        """Returns the bounds in seconds of a measured step."""
        return self.interval(step.phase).around(step.seconds)

    def model_flops(self, shape: StepShape) -> int:
        """Returns the operations that the undivided model needs for a step: no padding, no copies, no
        experts that are not chosen."""
        alone = self._uncut.op_times(0, StepShape.decode(1, 1))
        return sum(
            shape.rows_of(time.op.out.rows.number) * one.flops if isinstance(time.op, Experts) else time.flops
            for time, one in zip(self._uncut.op_times(0, shape), alone, strict=True)
        )

    @cached_property
    def _uncut(self) -> CostModel:
        programs = modes.compiler(self.graph, self.setup.instance, self.setup.profile)(Placement())
        return CostModel(programs, self.setup.instance, PROFILES["ideal"])

    def op_times(self, core: int, step: ProfileStep) -> Sequence[OpTime]:
        """Returns the time of each Op of the core in the step."""
        return self.cost.op_times(core, step.shape)


def _steps(setup: ProfileSetup, graph: Graph, timeline: Timeline) -> Iterator[ProfileStep]:
    now = 0.0
    for phase, name, shape in _shapes(setup, setup.decode_steps if graph.causal else 0):
        timing = timeline.submit(shape, now)
        yield ProfileStep(phase, name, shape, now, timing)
        now = timing.ready_at


def _shapes(setup: ProfileSetup, decode_steps: int) -> Iterator[tuple[Phase, str, StepShape]]:
    prompts, length, batch = setup.prompts, setup.input_len, setup.batch
    chunk = setup.profile.chunk or length
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        wanted = prompts if start + count == length else 0
        step = StepShape.of([(start, count)] * prompts, wanted)
        yield Phase.PREFILL, f"prefill {prompts} x {count}" + (f" at {start}" if start else ""), step
    for context in range(length + 1, length + 1 + decode_steps):
        yield Phase.DECODE, f"decode {batch} at {context}", StepShape.decode(batch, context)


def unpadded(profile: RuntimeProfile) -> RuntimeProfile:
    """Returns the same software, with a graph for every exact shape."""
    exact = Buckets.EXACT
    return replace(profile, prefill_buckets=exact, decode_buckets=exact, pads_batch=False, batch_powers=False)


def _check_batch(setup: ProfileSetup, blocks: int) -> None:
    fitting = blocks // setup.limits.blocks_per_sequence
    if fitting < setup.batch:
        raise UserError(
            f"--batch {setup.batch}: beside the weights {setup.instance.name} holds {fitting} sequences of "
            f"{setup.max_model_len} tokens; use --batch {fitting}, or more cores",
            "batch",
        )
