"""The time that adapters add to a step: two products for each Linear that they change, over their own rows.

Each adapter of a step has its matrices read once, in the compute format, however many rows have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from corepipe.neuron.chips.engines import OpCost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.compile.program import Program
from corepipe.neuron.ops import Linear
from corepipe.neuron.step import AdapterKind, AdapterRows, StepShape


class AdapterTimes:
    """Times the adapters of a step on each stage of a replica, whose stages have `cores` cores."""

    def __init__(self, programs: Sequence[Program], rates: Sequence[CoreRates], cores: int) -> None:
        self._programs = programs
        self._rates = rates
        self._cores = cores

    def stage_seconds(self, adapters: Sequence[AdapterRows]) -> list[float]:
        """Returns the seconds that the slowest core of each stage takes for these adapters; rows are not
        padded."""
        return [max(sum(core.seconds(used) for used in adapters) for core in cores) for cores in self._stages]

    @cached_property
    def _stages(self) -> list[list[_CoreTimes]]:
        """The distinct cores of each stage; a model without adapters never makes them."""
        stages = []
        for at in range(0, len(self._programs), self._cores):
            part = slice(at, at + self._cores)
            pairs = zip(self._programs[part], self._rates[part], strict=True)
            distinct = {(id(program.ops), rate): program for program, rate in pairs}
            stages.append([_CoreTimes(program, rate) for (_, rate), program in distinct.items()])
        return stages


class _CoreTimes:
    """Times adapters on one core."""

    def __init__(self, program: Program, rates: CoreRates) -> None:
        self._program = program
        self._rates = rates
        self._costs: dict[AdapterKind, Counter[OpCost]] = {}
        self._known: dict[AdapterRows, float] = {}

    def seconds(self, used: AdapterRows) -> float:
        if used not in self._known:
            shape = StepShape(used.counts, 1, 0, 0)
            costs = self._costs_of(used.kind)
            self._known[used] = sum(count * cost.engines(shape).seconds for cost, count in costs.items())
        return self._known[used]

    def _costs_of(self, kind: AdapterKind) -> Counter[OpCost]:
        """Returns the costs of an adapter's products, with the number of each."""
        if kind not in self._costs:
            fmt, rates = self._program.format, self._rates
            linears = (op for op in self._program.ops if isinstance(op, Linear))
            changed = (op for op in linears if kind.changes(op.weight.name))
            self._costs[kind] = Counter(
                cost for op in changed for cost in op.adapter_costs(kind.rank, fmt, rates)
            )
        return self._costs[kind]
