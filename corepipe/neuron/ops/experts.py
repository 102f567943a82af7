"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corepipe.neuron.engines import Cost, ExpertsCost
from corepipe.neuron.graph import Format, Function, Value, WeightSpec
from corepipe.neuron.ops.base import Cut, Keeps, Op
from corepipe.neuron.ops.costs import GATE, Passes, matrix_cost, merged, passes_beside
from corepipe.neuron.rates import CoreRates

COMBINE = Passes(two=2)  # an expert's result times its weight, and added

SUMMED = 1
"""How often the sum crosses memory, in and out, for each expert of a prompt (NxD's forward_all_experts)."""


@dataclass(frozen=True, slots=True)
class Experts(Keeps):
    """A mixture of experts: each row goes to the `top_k` experts that its routing scores are highest for.

    out = sum over those experts of weight x down(function(gate(x)) * up(x)).  routing: [rows, experts], a
    Linear's result.  gate and up are [experts, ffn, hidden], down is [experts, hidden, ffn]; `biases`, if
    any, are those of the three, [experts, ffn] twice and [experts, hidden].  `ffn` is the part of an
    expert's middle that the core has.
    """

    x: Value
    routing: Value
    gate: WeightSpec
    up: WeightSpec
    down: WeightSpec
    top_k: int
    ffn: int
    function: Function = Function.SILU
    biases: tuple[WeightSpec, ...] = ()

    @property
    def experts(self) -> int:
        return self.gate.shape[0]

    def own_fields(self, cut: Cut) -> Mapping[str, Any]:
        """The sum over ranks must add the last bias once."""
        return {"ffn": cut.width(self.gate.axes[1]), "biases": self.biases[: 2 if cut.rank else None]}

    def sums(self) -> bool:
        return self.gate.axes[1].is_cut

    def read_bytes(self, fmt: Format) -> float:
        return self.top_k / self.experts * Op.read_bytes(self, fmt)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """An expert's three matrices and its gate; its result is weighted and added to the others'.

        Where all experts take all rows, the results of their first two products and of the third are tensors
        of [experts, rows, 2 x ffn] and [experts, rows, hidden] (NxD's ExpertMLPs.forward_all_experts): no
        on-chip memory holds those of a prompt, so that each is written to memory and read by the next step.
        Nor does it hold the sum, to which one expert's result is added after the other's.
        """
        rows, ffn, hidden = self.out.rows, self.ffn, self.x.width
        gate, up, down = (
            matrix_cost(rows, shape, fmt, rates)
            for shape in ((ffn, hidden), (ffn, hidden), (self.out.width, ffn))
        )
        gated = passes_beside(rows, GATE, ffn, fmt, rates)
        added = passes_beside(rows, COMBINE, self.out.width, fmt, rates)
        middle, result = (n * fmt.compute.bytes for n in (2 * ffn, self.out.width))
        steps = (
            merged((gate, up), rates, written=middle),
            merged((gated, down), rates, read=middle, written=result),
            merged((added,), rates, read=(1 + SUMMED) * result, written=SUMMED * result),
        )
        one = merged((gate, up, gated, down, added), rates)
        return ExpertsCost(one, steps, self.experts, self.top_k, 2 * rates.start)
