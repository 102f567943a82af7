"""The cost model: how long a step takes on each emulated core, what bounds it, what it costs.

Analytic, from the catalogue alone; `opcost` has the formulas.  A Program is compiled once into a small
table, so that a step's time is a few look-ups and multiplications.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from corepipe.neuron.graph import Graph, Linear, Op, Receive, Rows, WeightRole
from corepipe.neuron.hardware import Instance
from corepipe.neuron.opcost import (
    AttentionCost,
    CoreRates,
    OpCost,
    core_rates,
    keeps_weights,
    link,
    op_cost,
    weight_bytes,
)
from corepipe.neuron.program import Program


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a batch decides its time.

    rows: tokens computed; sequences they belong to; kv_tokens: sum of the sequences' context lengths,
    the rows included; attended: sum over rows of the keys that each attends to; logit_rows: rows whose
    logits are wanted.
    """

    rows: int
    sequences: int
    kv_tokens: int
    attended: int
    logit_rows: int

    @classmethod
    def of(cls, chunks: Iterable[tuple[int, int]], logit_rows: int) -> StepShape:
        """The shape of a batch of (start, count) chunks, one a sequence."""
        rows = sequences = kv_tokens = attended = 0
        for start, count in chunks:
            rows += count
            sequences += 1
            kv_tokens += start + count
            attended += count * start + count * (count + 1) // 2
        return cls(rows, sequences, kv_tokens, attended, logit_rows)

    @classmethod
    def decode(cls, sequences: int, context: int) -> StepShape:
        """One token for each of `sequences`, each with `context` tokens, the new one included."""
        return cls(sequences, sequences, sequences * context, sequences * context, sequences)


class Bottleneck(StrEnum):
    """What a core spends its time on."""

    COMPUTE = "compute"
    WEIGHTS = "weights memory"
    KV = "KV memory"
    COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step on one core by what bounds each Op."""

    seconds: dict[Bottleneck, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def bottleneck(self) -> Bottleneck:
        return max(self.seconds, key=self.seconds.__getitem__)


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """What the host adds to each step it submits.  `host_seconds` a step, one step after the other."""

    name: str
    host_seconds: float
    source: str


PROFILES = {
    p.name: p
    for p in (
        RuntimeProfile("ideal", 0.0, "no host at all"),
        RuntimeProfile("async", 28e-6, "src/neuronperf/model_neuron_b1.csv: time of an empty model"),
        RuntimeProfile("sync", 437e-6, "vllm-neuron/docs/design/framework/async_execution.md: gap per step"),
    )
}


class _Lines:
    """A sum of maxima of lines, as pieces: from breaks[i - 1] rows on, base[i] + slope[i] x rows."""

    __slots__ = ("_base", "_breaks", "_slope")

    def __init__(self, costs: Counter[OpCost]) -> None:
        self._breaks = sorted({x for cost in costs for x in _crossings(cost)})
        inside = [(a + b) / 2 for a, b in zip([0.0, *self._breaks], self._breaks, strict=False)]
        inside.append(self._breaks[-1] + 1 if self._breaks else 1.0)
        pieces = [_piece(costs, x) for x in inside]
        self._base = [base for base, _ in pieces]
        self._slope = [slope for _, slope in pieces]

    def at(self, rows: int) -> float:
        if rows == 0:
            return 0.0
        i = bisect_right(self._breaks, rows)
        return self._base[i] + self._slope[i] * rows


def _crossings(cost: OpCost) -> Iterable[float]:
    """Row counts where two of the cost's lines meet."""
    lines = cost.lines()
    for i, (base_a, slope_a) in enumerate(lines):
        for base_b, slope_b in lines[:i]:
            if slope_a != slope_b and (x := (base_b - base_a) / (slope_a - slope_b)) > 0:
                yield x


def _piece(costs: Counter[OpCost], x: float) -> tuple[float, float]:
    """Sum over the Ops of the line that is highest at x."""
    base = slope = 0.0
    for cost, count in costs.items():
        high = max(cost.lines(), key=lambda line: line[0] + line[1] * x)
        base += count * (high[0] + cost.link)
        slope += count * (high[1] + cost.link_row)
    return base, slope


class _Table:
    """The compiled cost of a list of Ops on one core."""

    def __init__(self, costs: Counter[OpCost | AttentionCost]) -> None:
        plain = {c: n for c, n in costs.items() if isinstance(c, OpCost)}
        self.plain = plain
        self.attention = {c: n for c, n in costs.items() if isinstance(c, AttentionCost)}
        self._tokens = _Lines(Counter({c: n for c, n in plain.items() if c.rows is Rows.TOKENS}))
        self._logits = _Lines(Counter({c: n for c, n in plain.items() if c.rows is Rows.LOGITS}))

    def seconds(self, shape: StepShape) -> float:
        total = self._tokens.at(shape.rows) + self._logits.at(shape.logit_rows)
        for cost, count in self.attention.items():
            arithmetic = cost.arithmetic(shape.rows, shape.attended)
            memory = cost.memory(shape.rows, shape.sequences, shape.kv_tokens)
            total += count * max(arithmetic, memory)
        return total

    def explain(self, shape: StepShape) -> Breakdown:
        seconds = dict.fromkeys(Bottleneck, 0.0)
        for cost, count in self.plain.items():
            rows = shape.rows if cost.rows is Rows.TOKENS else shape.logit_rows
            if rows:
                arithmetic, memory = cost.arithmetic(rows), cost.memory(rows)
                by = Bottleneck.WEIGHTS if memory > arithmetic else Bottleneck.COMPUTE
                seconds[by] += count * max(arithmetic, memory)
                seconds[Bottleneck.COLLECTIVES] += count * (cost.link + cost.link_row * rows)
        for attention, count in self.attention.items():
            arithmetic = attention.arithmetic(shape.rows, shape.attended)
            memory = attention.memory(shape.rows, shape.sequences, shape.kv_tokens)
            by = Bottleneck.KV if memory > arithmetic else Bottleneck.COMPUTE
            seconds[by] += count * max(arithmetic, memory)
        return Breakdown(seconds)


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Seconds for a step's activations to reach a stage."""

    fixed: float
    row: float


class CostModel:
    """Times the Programs of one replica on an instance.

    programs: the compiler's, index stage * tensor + rank.  data: replicas in the deployment, placed on
    consecutive cores; replica: which of them this is.  Raises ValueError where the instance has too few
    cores.
    """

    def __init__(
        self, programs: Sequence[Program], instance: Instance, data: int = 1, replica: int = 0
    ) -> None:
        in_use = len(programs) * data
        if in_use > instance.cores:
            raise ValueError(f"{in_use} cores are needed and {instance.name} has {instance.cores}")
        self.instance = instance
        self.tensor = sum(program.stage == 0 for program in programs)
        self.stages = len(programs) // self.tensor
        first = replica * len(programs)
        rates = _rates(programs, instance, data, replica)
        self._tables = _shared_tables(programs, rates)
        self._transfers = self._stage_transfers(programs, rates, first)
        self._distinct = [list(dict.fromkeys(self._stage_tables(s))) for s in range(self.stages)]

    def seconds(self, core: int, shape: StepShape) -> float:
        """Time of a step on core `core` of the replica, without the transfer from the stage before."""
        return self._tables[core].seconds(shape)

    def stage_seconds(self, shape: StepShape) -> list[float]:
        """Time of a step on each stage: that of its slowest core."""
        known: dict[_Table, float] = {}
        for tables in self._distinct:
            for table in tables:
                if table not in known:
                    known[table] = table.seconds(shape)
        return [max(known[table] for table in tables) for tables in self._distinct]

    def transfer_seconds(self, stage: int, shape: StepShape) -> float:
        """Time for the activations of `stage - 1` to reach `stage`; 0 for the first."""
        transfer = self._transfers[stage]
        return transfer.fixed + transfer.row * shape.rows

    def latency(self, shape: StepShape) -> float:
        """Time of a step through all stages of an idle replica, without the host."""
        moved = sum(self.transfer_seconds(stage, shape) for stage in range(self.stages))
        return sum(self.stage_seconds(shape)) + moved

    def explain(self, core: int, shape: StepShape) -> Breakdown:
        """Where the time of `seconds(core, shape)` goes."""
        return self._tables[core].explain(shape)

    def _stage_tables(self, stage: int) -> list[_Table]:
        return self._tables[stage * self.tensor : (stage + 1) * self.tensor]

    def _stage_transfers(
        self, programs: Sequence[Program], rates: Sequence[CoreRates], first: int
    ) -> list[_Transfer]:
        slowest = [_Transfer(0.0, 0.0)] * self.stages
        for program, rate in zip(programs, rates, strict=True):
            there = _transfer(program, rate, self.instance, first)
            worst = slowest[program.stage]
            slowest[program.stage] = _Transfer(max(worst.fixed, there.fixed), max(worst.row, there.row))
        return slowest


def _rates(programs: Sequence[Program], instance: Instance, data: int, replica: int) -> list[CoreRates]:
    """Speeds of the cores of one replica, beside the others.

    The cores of a memory bank that read their weights at each step share its bandwidth, as if they always
    worked at the same time.
    """
    reads = [not keeps_weights(instance, _matrix_bytes(program)) for program in programs]
    crowd = Counter(instance.bank_of(i) for i, read in enumerate(reads * data) if read)
    first = replica * len(programs)
    rates = []
    for program, read in zip(programs, reads, strict=True):
        group = [first + p.core for p in programs if p.stage == program.stage]
        sharing = crowd[instance.bank_of(first + program.core)] + (not read)
        rates.append(core_rates(instance, program.format, group, sharing=sharing, reads_weights=read))
    return rates


def _matrix_bytes(program: Program) -> int:
    shards = (s for s in program.shards.values() if s.spec.role is WeightRole.MATRIX)
    return sum(weight_bytes(s.shape, s.spec.role, program.format) for s in shards)


def _shared_tables(programs: Sequence[Program], rates: Sequence[CoreRates]) -> list[_Table]:
    """One table for each core; cores with the same costs share theirs."""
    known: dict[frozenset[tuple[OpCost | AttentionCost, int]], _Table] = {}
    tables = []
    for program, rate in zip(programs, rates, strict=True):
        costs = Counter(op_cost(op, program.format, rate) for op in program.ops)
        key = frozenset(costs.items())
        if key not in known:
            known[key] = _Table(costs)
        tables.append(known[key])
    return tables


def _transfer(program: Program, rate: CoreRates, instance: Instance, first: int) -> _Transfer:
    fixed = row = 0.0
    for op in program.ops:
        if isinstance(op, Receive):
            way = link(instance, (first + op.peer, first + program.core), rate.memory)
            fixed = max(fixed, way.seconds)
            row += op.out.width * program.format.compute.bytes / way.bytes_per_second
    return _Transfer(fixed, row)


DECODE = StepShape.decode(sequences=1, context=256)
"""The step that stages are balanced for, unless another is given."""


def stage_weights(
    graph: Graph, instance: Instance, stages: int = 1, shape: StepShape = DECODE
) -> tuple[float, ...]:
    """Predicted seconds of a step on one core for each part of the graph, to balance a pipeline by.

    As `placement.cut_layers` takes them: what precedes the layers, each layer, what follows them.  A layer
    shares its core with the others of an even part of the layers; what follows them has its own.
    """
    parts: dict[int, list[Op]] = {layer: [] for layer in range(-1, graph.num_layers + 1)}
    for op in graph.ops:
        parts[op.layer].append(op)
    known: dict[frozenset[tuple[OpCost | AttentionCost, int]], float] = {}
    sharing = -(-graph.num_layers // stages)
    return tuple(
        _part_seconds(ops, graph, instance, shape, known, sharing if 0 <= layer < graph.num_layers else 1)
        for layer, ops in parts.items()
    )


def _part_seconds(
    ops: Sequence[Op],
    graph: Graph,
    instance: Instance,
    shape: StepShape,
    known: dict[frozenset[tuple[OpCost | AttentionCost, int]], float],
    sharing: int,
) -> float:
    """Seconds of consecutive Ops on a core that holds `sharing` such parts; those alike are timed once."""
    matrices = [op.weight.shape for op in ops if isinstance(op, Linear)]
    held = sum(weight_bytes(matrix, WeightRole.MATRIX, graph.format) for matrix in matrices)
    reads = not keeps_weights(instance, sharing * held)
    rates = core_rates(instance, graph.format, (0,), sharing=1, reads_weights=reads)
    costs = Counter(op_cost(op, graph.format, rates) for op in ops)
    key = frozenset(costs.items())
    if key not in known:
        known[key] = _Table(costs).seconds(shape)
    return known[key]


def dollars_per_million_tokens(price_per_hour: float, tokens_per_second: float) -> float:
    """Dollars for a million tokens at a price in dollars an hour.  Raises ValueError for no tokens."""
    if not tokens_per_second > 0:
        raise ValueError(f"tokens_per_second must be positive, not {tokens_per_second}")
    return 1e6 / tokens_per_second * price_per_hour / 3600
