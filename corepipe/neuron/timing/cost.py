"""The cost model: how long a step takes on each emulated core, what limits it, what it costs.

`ops` have the formulas, `constants` the fitted numbers, `profiles` the time of the software.  A Program is
compiled once into a small table of distinct costs, so that a step's time is a few look-ups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips.constants import HOST_LINK_BYTES_PER_SECOND, Constants
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.native_plugin import takes_flash
from corepipe.neuron.chips.rates import CoreRates, core_rates, link, read_share, sharing_of, stage_mesh
from corepipe.neuron.chips.runtime_profile import (
    NEVER,
    Buckets,
    RuntimeProfile,
    SamplingLocation,
    pad,
    pad_contexts,
)
from corepipe.neuron.chips.scales import Scales, Site
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.ops import Receive
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.adapter_times import AdapterTimes
from corepipe.neuron.timing.tables import (
    Breakdown,
    CostTable,
    LimitingResource,
    OpCosts,
    OpTime,
    groups,
    one_after_another,
    shared_tables,
)
from corepipe.neuron.values import OutputKind, WeightRole, weight_bytes

__all__ = ["CostModel", "LimitingResource", "OpTime", "StepShape"]


NO_STEP = StepShape((), 0, 0, 0)
"""The shape of a step in which nothing is computed."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Seconds for a step's activations to reach a stage."""

    fixed: float
    row: float


class CostModel:
    """Times the Programs of one replica on an instance.

    programs: the compiler's, index stage * cores of a stage + rank.  profile: the software; its constants, or
    `constants` instead of them.  data: replicas in the deployment, placed on consecutive cores; replica: the
    index of this one.  batch: the sequences that decode graphs are compiled for, where the profile pads to
    them (None: as many as a step has); longest: tokens of the longest sequence that they are compiled for
    (None: the Programs' own).  `lone` times the same replica when only one batch is in its pipeline.
    Raises ValueError where the instance has too few cores.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        instance: Instance,
        profile: RuntimeProfile,
        data: int = 1,
        replica: int = 0,
        batch: int | None = None,
        longest: int | None = None,
        constants: Constants | None = None,
    ) -> None:
        in_use = len(programs) * data
        if in_use > instance.cores:
            raise ValueError(f"{in_use} cores are needed and {instance.name} has {instance.cores}")
        self.instance = instance
        self.profile = profile
        self.tensor = sum(program.stage == 0 for program in programs)
        self.stages = len(programs) // self.tensor
        self._batch = batch
        self._programs = programs
        self._longest = longest or programs[0].max_positions
        self._padding = _with_its_kernel(profile, programs, self._longest)
        self._outputs = programs[-1].outputs
        self._keeps = any(op.state is not None for program in programs for op in program.ops)
        self._given = [(op.out.rows, op.given()) for op in programs[0].ops if op.given()]
        self._place = (data, replica)
        self._costs = OpCosts.of(profile, instance)
        self._groups = groups(programs, self._costs)
        self._matrices = of_each(programs, _matrix_bytes)
        self._scales = profile.scales
        self._rates: list[CoreRates] = []
        self._last = (NO_STEP, NO_STEP)
        self._use(constants or profile.constants_of(instance.chip.core.version))

    def with_constants(self, constants: Constants) -> CostModel:
        """Returns the same deployment with other constants: far quicker than a new CostModel."""
        other = copy(self)
        other._use(constants)
        return other

    def with_scales(self, scales: Scales) -> CostModel:
        """Returns the same model with step times, copies included, multiplied by these scales."""
        other = copy(self)
        other._scales, other._graphs, other._graph_totals = scales, {}, {}
        other.lone = other if self.lone is self else self.lone.with_scales(scales)
        return other

    def with_batch(self, batch: int | None, chunk: int | None = None) -> CostModel:
        """Returns the same deployment with graphs for other batches, and for prefill steps of `chunk` tokens
        where the profile computes prompts in chunks (None: the profile's): far quicker than a new
        CostModel."""
        other = copy(self)
        other._batch, other._last = batch, (NO_STEP, NO_STEP)
        if chunk is not None:
            other._padding = replace(self._padding, chunk=chunk)
        other.lone = other if self.lone is self else self.lone.with_batch(batch, chunk)
        return other

    def on_replica(self, replica: int) -> CostModel:
        """Returns the same model on the cores of another replica: where they are as fast, the two share times
        of steps."""
        other = copy(self)
        other._place = (self._place[0], replica)
        other._use(self._constants)
        return other

    def same_times(self, other: CostModel) -> bool:
        """Returns True if every stage of every step takes as long in both, lone ones too, and so do the
        transfers between stages: as on replicas whose cores and links are as fast."""
        graphs = self._batch == other._batch and self._padding == other._padding
        if not graphs or self._graphs is not other._graphs or self._transfers != other._transfers:
            return False
        lone, theirs = self.lone, other.lone
        return lone._rates == theirs._rates and lone._transfers == theirs._transfers

    def _use(self, constants: Constants) -> None:
        self._constants = constants
        self.lone = self
        self._time(self._core_rates(constants))
        if self.stages > 1 and self.instance.cores_per_bank > 1:
            self.lone = copy(self)
            self.lone.lone = self.lone
            self.lone._time(self._core_rates(constants, lone=True))

    def _time(self, rates: list[CoreRates]) -> None:
        before, self._rates = self._rates, rates
        self._transfers = self._stage_transfers(self._place[1] * len(self._programs))
        if before == rates:
            return
        self._adapters = AdapterTimes(self._programs, rates, self.tensor)
        self._tables = shared_tables(self._programs, self._groups, rates, self._costs)
        self._distinct = [list(dict.fromkeys(self._stage_tables(s))) for s in range(self.stages)]
        self._graphs: dict[StepShape, list[float]] = {}
        self._graph_totals: dict[StepShape, list[tuple[float, Engines]]] = {}

    def padded(self, shape: StepShape) -> StepShape:
        """Returns the step that the device runs for a batch: padded to the graphs that the profile
        compiles."""
        last, padded = self._last
        if last is not shape:  # a step is asked about several times in a row
            padded = pad(shape, self._padding, self._longest, self._batch, self.instance.lnc)
            self._last = (shape, padded)
        return padded

    def site(self, shape: StepShape) -> Site:
        """Returns the kind of a step, as a fit distinguishes them."""
        return self._site(self.padded(shape))

    def _site(self, padded: StepShape) -> Site:
        version = self.instance.chip.core.version
        return Site(padded.decodes, version, self.instance.name, max(1, padded.rows))

    def _scale(self, padded: StepShape) -> float:
        """Returns the correction of a step's predicted time."""
        scales = self._scales
        if scales.learnt:
            return scales.of(self._site(padded))
        return scales.decode if padded.decodes else scales.prompt

    def seconds(self, core: int, shape: StepShape) -> float:
        """Returns the time of a step on core `core` of the replica, without the transfer from the stage
        before."""
        padded = self.padded(shape)
        return self._tables[core].seconds(padded) * self._scale(padded)

    def stage_seconds(self, shape: StepShape) -> list[float]:
        """Returns the time of a step on each stage: that of its slowest core."""
        if shape.adapters:
            bare, more = shape._replace(adapters=()), self._adapters.stage_seconds(shape.adapters)
            scale = self._scale(self.padded(bare))
            return [own + scale * m for own, m in zip(self.stage_seconds(bare), more, strict=True)]
        padded = self.padded(shape)
        if padded is shape:
            return self._stage_seconds(shape)
        if padded not in self._graphs:
            self._graphs[padded] = self._stage_seconds(padded)
        return self._graphs[padded]

    def _stage_seconds(self, shape: StepShape) -> list[float]:
        """Returns the same for a step that is padded."""
        scale = self._scale(shape)
        known: dict[CostTable, float] = {}
        for tables in self._distinct:
            for table in tables:
                if table not in known:
                    known[table] = table.seconds(shape)
        return [scale * max(known[t] for t in tables) for tables in self._distinct]

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns [stages, n]: `stage_seconds` of n decode steps of `sequences`, with kv_tokens[i] tokens of
        context in all of them; the same numbers to the last bit."""
        running, contexts = pad_contexts(sequences, kv_tokens, self.profile, self._longest, self._batch)
        known: dict[CostTable, npt.NDArray[np.float64]] = {}
        for tables in self._distinct:
            for table in tables:
                if table not in known:
                    known[table] = table.decode_seconds(running, contexts)
        slowest = (np.maximum.reduce([known[t] for t in tables]) for tables in self._distinct)
        return self._scale(StepShape.decode(running, 1)) * np.stack(list(slowest))

    def transfer_seconds(self, stage: int, shape: StepShape) -> float:
        """Returns the time for the activations of `stage - 1` to reach `stage`; 0 for the first."""
        return self.transfers(shape)[stage]

    def transfers(self, shape: StepShape) -> list[float]:
        """Returns `transfer_seconds` of each stage."""
        rows = self.padded(shape).rows if self.stages > 1 else 0
        return [transfer.fixed + transfer.row * rows for transfer in self._transfers]

    def sampling_seconds(self, shape: StepShape) -> float:
        """Returns the time from a step's logits to its tokens, where they are sampled on the host."""
        if self.profile.sampling is SamplingLocation.DEVICE or not shape.logit_rows:
            return 0.0
        width = sum(o.value.width for o in self._outputs if o.kind is OutputKind.LOGITS)
        logits = self.padded(shape).logit_rows * width
        return logits * (4 / HOST_LINK_BYTES_PER_SECOND + self.profile.host_seconds_per_logit)

    def input_seconds(self, shape: StepShape) -> float:
        """Returns the time to copy a step's inputs to the device: images; token ids take none."""
        if not self._given:
            return 0.0
        elements = sum(shape.rows_of(rows.number) * rows.each * width for rows, width in self._given)
        size = elements * self._programs[0].format.compute.bytes
        return self._scale(self.padded(shape)) * size / HOST_LINK_BYTES_PER_SECOND

    def output_seconds(self, shape: StepShape) -> float:
        """Returns the time to copy to the host the outputs of a model that runs once over its input: the
        first output, and others of its kind."""
        kind = self._outputs[0].kind
        returned = [output.value for output in self._outputs if output.kind is kind]
        elements = sum(shape.rows_of(v.rows.number) * v.rows.each * v.width for v in returned)
        size = self.profile.result_copies * elements * self._programs[-1].format.compute.bytes
        return self._scale(self.padded(shape)) * size / HOST_LINK_BYTES_PER_SECOND

    def result_seconds(self, shape: StepShape) -> float:
        """Returns the time until the host has the outputs of a model that runs once over its input; else
        0."""
        return 0.0 if self._keeps else self.output_seconds(shape)

    def latency(self, shape: StepShape) -> float:
        """Returns the time of a step through all stages of an idle replica, without the host."""
        return sum(self.lone.stage_seconds(shape)) + sum(self.transfers(shape))

    def explain(self, core: int, shape: StepShape) -> Breakdown:
        """Returns the parts of the time of `seconds(core, shape)`."""
        return self._tables[core].explain(self.padded(shape))

    def engine_seconds(self, core: int, shape: StepShape) -> dict[str, float]:
        """Returns how long each engine of core `core` works in a step."""
        return self._tables[core].engine_seconds(self.padded(shape))

    def stage_totals(self, shape: StepShape) -> list[tuple[float, Engines]]:
        """Returns for the first core of each stage its time of a step, and the work of its engines in it."""
        padded = self.padded(shape)
        if padded is shape:
            return self._stage_totals(shape)
        if padded not in self._graph_totals:
            self._graph_totals[padded] = self._stage_totals(padded)
        return self._graph_totals[padded]

    def _stage_totals(self, padded: StepShape) -> list[tuple[float, Engines]]:
        """Returns the same for a step that is padded."""
        firsts = self._tables[:: self.tensor]
        scale = self._scale(padded)
        known = {t: (scale * t.seconds(padded), t.totals(padded)) for t in dict.fromkeys(firsts)}
        return [known[table] for table in firsts]

    def op_times(self, core: int, shape: StepShape) -> list[OpTime]:
        """Returns the time of each Op of core `core` in a step, in the order of its Program."""
        padded = self.padded(shape)
        program, rates = self._programs[core], self._rates[core]
        costs = ((op, self._costs(op, program.format, rates).engines(padded)) for op in program.ops)
        return list(one_after_another(costs))

    def _core_rates(self, constants: Constants, lone: bool = False) -> list[CoreRates]:
        """Returns the speeds of the cores of one replica, with the other replicas at work.

        The cores of a memory bank that read weights at each step share its bandwidth, as if they always
        worked at the same time; with a `lone` batch the stages of a replica take turns.
        """
        instance, programs = self.instance, self._programs
        first = self._place[1] * len(programs)
        shares = [read_share(instance, size) for size in self._matrices]
        demands = self._demands(shares, lone)
        known: dict[tuple[int, float, float], CoreRates] = {}  # by the first core of a tensor group
        rates = []
        for program, share, matrices in zip(programs, shares, self._matrices, strict=True):
            core = first + program.core
            beside = demands[instance.bank_of(core)]
            others = (reads for turn, reads in beside.items() if turn != self._turn(core, lone))
            sharing = sharing_of(share * matrices, others)
            group, stage = (range(first + c.start, first + c.stop) for c in self._joined(program))
            key = (group.start, sharing, share)
            if key not in known:
                own = core_rates(
                    instance,
                    program.format,
                    group,
                    sharing=sharing,
                    read_share=share,
                    constants=constants,
                    attention=self.profile.attention,
                )
                mesh = stage_mesh(instance, stage, own.memory, constants) if len(stage) > len(group) else None
                known[key] = replace(own, sequence_parallel=self.profile.sequence_parallel, stage=mesh)
            rates.append(known[key])
        return rates

    def _joined(self, program: Program) -> tuple[range, range]:
        """Returns the cores of its tensor group, and of its stage."""
        return program.group(self.tensor), program.stage_cores(self.tensor)

    def _demands(self, shares: Sequence[float], lone: bool) -> dict[int, dict[int, float]]:
        """Returns the bytes of weights that a step reads from each memory bank, by cores that read at the
        same time."""
        demands: defaultdict[int, dict[int, float]] = defaultdict(dict)
        reads = [share * size for share, size in zip(shares, self._matrices, strict=True)]
        for core, wanted in enumerate(reads * self._place[0]):
            bank, turn = demands[self.instance.bank_of(core)], self._turn(core, lone)
            bank[turn] = max(bank.get(turn, 0.0), wanted)
        return demands

    def _turn(self, core: int, lone: bool) -> int:
        """Returns a number that is the same for cores that wait for one another: the stages of a lone
        batch."""
        if not lone:
            return core
        replica, within = divmod(core, len(self._programs))
        return replica * self.tensor + within % self.tensor

    def _stage_tables(self, stage: int) -> list[CostTable]:
        return self._tables[stage * self.tensor : (stage + 1) * self.tensor]

    def _stage_transfers(self, first: int) -> list[_Transfer]:
        slowest = [_Transfer(0.0, 0.0)] * self.stages
        if self.stages == 1:
            return slowest
        for program, rate in zip(self._programs, self._rates, strict=True):
            there = _transfer(program, rate, self.instance, first)
            worst = slowest[program.stage]
            slowest[program.stage] = _Transfer(max(worst.fixed, there.fixed), max(worst.row, there.row))
        return slowest


def _with_its_kernel(profile: RuntimeProfile, programs: Sequence[Program], longest: int) -> RuntimeProfile:
    """Returns the profile with plain attention, where its flash kernel does not support the model's heads."""
    if profile.prefill_buckets is not Buckets.CHUNKS:
        return profile
    layouts = {layout for program in programs for layout in program.head_layouts}
    if all(takes_flash(layout.heads, layout.head_dim, longest) for layout in layouts):
        return profile
    return replace(profile, attention=replace(profile.attention, causal_from=(NEVER, NEVER)))


def _matrix_bytes(program: Program) -> int:
    """Returns the bytes of the matrices of a Program."""
    shards = (s for s in program.shards.values() if s.spec.role is WeightRole.MATRIX)
    return sum(weight_bytes(s.shape, s.spec.role, program.format) for s in shards)


def _transfer(program: Program, rate: CoreRates, instance: Instance, first: int) -> _Transfer:
    fixed = row = 0.0
    for op in program.ops:
        if isinstance(op, Receive):
            way = link(instance, (first + op.peer, first + program.core), rate.memory)
            fixed = max(fixed, way.seconds)
            row += op.out.width * op.out.rows.each * program.format.compute.bytes / way.bytes_per_second
    return _Transfer(fixed, row)
