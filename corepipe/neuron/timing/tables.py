"""The Ops of a Program as the cost model keeps them: one of each kind and size, with its count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips.engines import AttentionCost, Cost, Engines, OpCost, ScanCost
from corepipe.neuron.chips.hardware import ENGINES, Instance
from corepipe.neuron.chips.rates import CoreLink, CoreRates
from corepipe.neuron.chips.runtime_profile import AttentionStyle, OpKernels, RuntimeProfile
from corepipe.neuron.compile.program import Program, of_each
from corepipe.neuron.formats import Format
from corepipe.neuron.ops.base import Op
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.kernel_cost import KernelCost

_parts: Callable[[Engines], tuple[float, ...]] = attrgetter(*(field.name for field in fields(Engines)))
"""All fields, in their order."""


class LimitingResource(StrEnum):
    """The resource that limits the time of a core."""

    COMPUTE = "compute"
    WEIGHTS = "weights memory"
    KV = "KV memory"
    COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a step on one core by the resource that limits each Op."""

    seconds: dict[LimitingResource, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def bottleneck(self) -> LimitingResource:
        return max(self.seconds, key=self.seconds.__getitem__)


@dataclass(frozen=True, slots=True)
class OpTime:
    """One Op in a step: seconds from the step's start on the core, and the work of each engine meanwhile.

    The Ops of a core follow one another, so that the last one's `end` is the core's time.  `engines` has
    (start, end) of those that work; `bound_by` is the one that the Op waits for, None where none works.
    """

    op: Op
    start: float
    end: float
    engines: dict[str, tuple[float, float]]
    hbm_read_bytes: int
    hbm_write_bytes: int
    flops: int
    bound_by: str | None


PROBE = CoreRates(
    matmul=2.0e12,
    attention=3.0e12,
    vector=5.0e9,
    scalar=7.0e9,
    memory=11.0e9,
    min_rows=1,
    read_share=1.0,
    degree=13,
    group=CoreLink(17e-6, 19e9),
    pass_seconds=23e-9,
    start=29e-6,
    descriptor=31.0,
    exchange=37e-6,
    ring=41e-6,
    contraction=43,
    style=AttentionStyle(fuses_rope=True),
    sequence_parallel=True,
)
"""The speeds of an imaginary core, to tell Ops apart by their costs."""


@dataclass(frozen=True, slots=True)
class OpCosts:
    """The costs of Ops: those that the Ops state, or those of the user's kernels.

    core: generation of the cores, and how many physical ones form one.
    """

    kernels: OpKernels | None
    core: tuple[str, int]

    @classmethod
    def of(cls, profile: RuntimeProfile, instance: Instance) -> OpCosts:
        """Returns the costs with a profile's kernels."""
        return cls(profile.kernels, (instance.chip.core.version, instance.lnc))

    def __call__(self, op: Op, fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of an Op on a core of these speeds."""
        own = op.cost(fmt, rates)
        return own if self.kernels is None else self.kernels.cost(op, own, fmt, self.core)


class CostTable:
    """The distinct costs of the Ops of one core."""

    def __init__(self, costs: Counter[Cost]) -> None:
        self.costs = costs
        self._by_context = {
            cost: count
            for cost, count in costs.items()
            if isinstance(cost, AttentionCost | KernelCost) and isinstance(_own(cost), AttentionCost)
        }
        self._plain = {cost: count for cost, count in costs.items() if cost not in self._by_context}
        self._by_sequence = any(
            isinstance(own, ScanCost) or (isinstance(own, OpCost) and own.split > 1)
            for own in map(_own, costs)
        )
        self._known: dict[tuple[int, ...], float] = {}

    def seconds(self, shape: StepShape) -> float:
        total = self.plain_seconds(shape)
        for cost, count in self._by_context.items():
            total += count * cost.engines(shape).seconds
        return total

    def plain_seconds(self, shape: StepShape) -> float:
        """Returns the seconds of the Ops whose time depends on no context, but on rows and the number of
        their sequences."""
        key = (*shape.counts, shape.sequences) if self._by_sequence else shape.counts
        found = self._known.get(key)
        if found is None:
            found = sum(count * cost.engines(shape).seconds for cost, count in self._plain.items())
            self._known[key] = found
        return found

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns `seconds` of decode steps of `sequences` with these totals of context tokens."""
        total = np.full(len(kv_tokens), self.plain_seconds(StepShape.decode(sequences, 1)))
        for cost, count in self._by_context.items():
            total += count * cost.decode_seconds(sequences, kv_tokens)
        return total

    def totals(self, shape: StepShape) -> Engines:
        """Returns the work of the engines in all Ops of a step together."""
        sums = [0.0] * len(fields(Engines))
        for cost, count in self.costs.items():
            sums = [
                total + count * part for total, part in zip(sums, _parts(cost.engines(shape)), strict=True)
            ]
        return Engines(*sums)

    def engine_seconds(self, shape: StepShape) -> dict[str, float]:
        totals = self.totals(shape)
        return {name: getattr(totals, name, 0.0) for name in ENGINES}

    def explain(self, shape: StepShape) -> Breakdown:
        seconds = dict.fromkeys(LimitingResource, 0.0)
        for cost, count in self.costs.items():
            engines = cost.engines(shape)
            seconds[_bottleneck(cost, engines)] += count * engines.seconds
        return Breakdown(seconds)


def _own(cost: Cost) -> Cost:
    """Returns the cost that the Op states, which says what its time depends on."""
    return cost.own if isinstance(cost, KernelCost) else cost


def _bottleneck(cost: Cost, engines: Engines) -> LimitingResource:
    match _bound_by(engines):
        case "collectives":
            return LimitingResource.COLLECTIVES
        case "dma":
            return (
                LimitingResource.KV
                if isinstance(_own(cost), AttentionCost | ScanCost)
                else LimitingResource.WEIGHTS
            )
        case _:
            return LimitingResource.COMPUTE


def _bound_by(engines: Engines) -> str | None:
    busiest = max(_active(engines), key=lambda pair: pair[1], default=None)
    return busiest and busiest[0]


def _active(engines: Engines) -> list[tuple[str, float]]:
    return [(name, seconds) for name in ENGINES if (seconds := getattr(engines, name, 0.0)) > 0]


def one_after_another(costs: Iterable[tuple[Op, Engines]]) -> Iterator[OpTime]:
    at = 0.0
    for op, engines in costs:
        begin = at + engines.start
        end = at + engines.seconds
        yield OpTime(
            op=op,
            start=at,
            end=end,
            engines={name: (begin, min(end, begin + seconds)) for name, seconds in _active(engines)},
            hbm_read_bytes=round(engines.read),
            hbm_write_bytes=round(engines.written),
            flops=round(engines.flops),
            bound_by=_bound_by(engines),
        )
        at = end


def groups(programs: Sequence[Program], costs: OpCosts) -> list[list[tuple[Op, int]]]:
    """Returns for each Program one Op of each kind and size, with its count.

    Ops are alike if they cost the same on a core whose speeds have no common factor.
    """
    return of_each(programs, partial(_grouped, costs))


def _grouped(costs: OpCosts, program: Program) -> list[tuple[Op, int]]:
    alike: dict[Cost, list[Op]] = {}
    for op in program.ops:
        alike.setdefault(costs(op, program.format, PROBE), []).append(op)
    return [(ops[0], len(ops)) for ops in alike.values()]


def shared_tables(
    programs: Sequence[Program],
    grouped: Sequence[list[tuple[Op, int]]],
    rates: Sequence[CoreRates],
    cost_of: OpCosts,
) -> list[CostTable]:
    """Returns one table for each core; cores with the same costs share theirs."""
    known: dict[frozenset[tuple[Cost, int]], CostTable] = {}
    made: dict[tuple[int, CoreRates], CostTable] = {}
    for program, group, rate in zip(programs, grouped, rates, strict=True):
        if (id(group), rate) not in made:
            costs: Counter[Cost] = Counter()
            for op, count in group:
                costs[cost_of(op, program.format, rate)] += count
            made[id(group), rate] = known.setdefault(frozenset(costs.items()), CostTable(costs))
    return [made[id(group), rate] for group, rate in zip(grouped, rates, strict=True)]
