"""Multiplication of rows by matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from corepipe.neuron.axes import AxisKind
from corepipe.neuron.chips.engines import Cost, OpCost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.ops.base import NewAxisOp, RankContext
from corepipe.neuron.ops.costs import matrix_cost, refuses_matrix
from corepipe.neuron.values import Value, WeightSpec


@dataclass(frozen=True, slots=True)
class Linear(NewAxisOp):
    """out = x @ weight.T (+ bias); weight is [out.width, x.width]."""

    x: Value
    weight: WeightSpec
    bias: WeightSpec | None = None

    def own_fields(self, cut: RankContext) -> Mapping[str, Any]:
        return {"bias": None} if cut.rank and self.sums() else {}  # the sum over ranks must add it once

    def sums(self) -> bool:
        return self.x.axis.is_cut

    def refuses_cut(self) -> str | None:
        if self.x.axis.kind is AxisKind.VOCABULARY:
            return f"{self.weight.name} multiplies logits"
        both = self.x.axis.is_cut and self.out.axis.is_cut
        return f"{self.weight.name} would be cut along both of its axes" if both else None

    def contradiction(self) -> str | None:
        agree = self.weight.axes == (self.out.axis, self.x.axis)
        return None if agree else f"{self.weight.name} has other axes than what it reads and makes"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        leaves = self.out.axis.kind is AxisKind.VOCABULARY
        return matrix_cost(self.out.rows, (self.out.width, self.x.width), fmt, rates, leaves=leaves)

    def adapter_costs(self, rank: int, fmt: Format, rates: CoreRates) -> tuple[OpCost, OpCost]:
        """Returns the costs of an adapter's two products, [rank, k] and [n, rank] in the compute format, over
        the rows that have it."""
        wide = Format(fmt.compute.value, fmt.compute, fmt.compute, fmt.compute)
        own = replace(rates, matmul=rates.attention)  # the rate of that format
        rows, n, k = self.out.rows, self.out.width, self.x.width
        return matrix_cost(rows, (rank, k), wide, own), matrix_cost(rows, (n, rank), wide, own)

    def refuses(self, fmt: Format) -> str | None:
        return refuses_matrix(fmt)
