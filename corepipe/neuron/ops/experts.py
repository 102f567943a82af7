"""Mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

from corepipe.neuron.axes import Axis, AxisShard, fixed
from corepipe.neuron.chips.engines import Cost, ExpertsCost, OpCost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format, Function
from corepipe.neuron.ops.base import Bindings, NativeProgram, Op, RankContext, SameWidthOp, Transfer
from corepipe.neuron.ops.costs import (
    GATE,
    Passes,
    exchanges,
    matrix_cost,
    merged,
    passes_beside,
    refuses_matrix,
)
from corepipe.neuron.values import Value, WeightSpec

WEIGH, ADD = Passes(two=1), Passes(two=1)  # an expert's result times its weight, and added to the others'

SUMMED = 1
"""Number of times that the sum crosses memory, in and out, for each expert of a prompt (NxD's
forward_all_experts)."""


class Scoring(StrEnum):
    """The weights of the experts that a row is routed to."""

    OF_ALL = "of_all"  # the softmax over all scores of the row
    OF_CHOSEN = "of_chosen"  # the softmax over the scores of the chosen experts: the weights sum to 1
    OF_NEAR = "of_near"  # for each, the softmax over the scores near its own, without those chosen before
    SIGMOID = "sigmoid"  # each score's sigmoid
    SIGMOID_SHARES = "sigmoid_shares"  # each sigmoid divided by the sum of those of the chosen experts
    INPUT_SIGMOID = "input_sigmoid"  # each score's sigmoid, which multiplies the expert's input

    @property
    def by_sigmoid(self) -> bool:
        """True if sigmoids of the scores decide which experts a row is routed to."""
        return self in (Scoring.SIGMOID, Scoring.SIGMOID_SHARES)


class Groups(NamedTuple):
    """Equal groups of experts; a row chooses among the experts of `taken` groups.

    Those are the groups with the largest score or, for sigmoids, with the largest sum of their two largest.
    """

    number: int
    taken: int


class ExpertRange(NamedTuple):
    """Consecutive experts: the number of the first, and their count."""

    first: int
    size: int


def summing(weighed: OpCost, added: OpCost, rates: CoreRates, result: int) -> tuple[OpCost, ...]:
    """Returns the cost of summing the experts' results of `result` bytes per row, after an expert's products.

    As in NxD: one operation weights an expert's result, and one adds it to the sum (`output += mlp_output[e]
    * affinities[:, e]`).
    """
    return (
        merged((weighed,), rates, read=result, written=result),
        merged((added,), rates, read=(1 + SUMMED) * result, written=SUMMED * result),
    )


@dataclass(frozen=True, slots=True)
class Experts(SameWidthOp):
    """A mixture of experts: each row is routed to the `top_k` experts with its highest routing scores.

    out = sum over those experts of weight x down(function(gate(x)) * up(x)), in the order of their scores,
    and for equal scores in the order of the experts.  With `INPUT_SIGMOID` the weights multiply the experts'
    inputs, weight x instead of x, and the results are added unweighted.  An expert accepts any number of
    rows.  A row whose scores are not all finite becomes NaN.
    routing: [rows, experts], a Linear's result; `scoring` makes weights of them.  gate and up are [experts,
    ffn, hidden], down is [experts, hidden, ffn]; `biases`, if any, are those of the three, [experts, ffn]
    twice and [experts, hidden].  `ffn` is the core's part of an expert's middle width.
    `nearness`: for `of_near`, by which part of the larger of both sizes a score may be less than the expert's
    (SparseMixer's: Liu et al. 2024, arXiv 2409.12136).  `correction` [experts] is added to sigmoids for the
    choice alone; `groups`: a row chooses among the experts of some groups (DeepSeek-V3, 2024, section 2.1.2);
    `factor` multiplies all weights.
    own: the experts of a core that holds only some.  Its result [rows, top_k * width] then holds, for each
    row, the results of the experts that it is routed to, in their order, neither weighted nor added, with
    zeros for the experts of other cores.  `GatherSlots` makes the sum.
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
    scoring: Scoring = Scoring.OF_ALL
    nearness: float | None = None
    correction: WeightSpec | None = None
    groups: Groups | None = None
    factor: float | None = None
    own: ExpertRange | None = None

    @property
    def experts(self) -> int:
        return self.gate.shape[0]

    def spread(self) -> Self:
        """Returns the Op with experts that are cut along no other axis."""
        gate, up, down = (_whole_middle(spec, self.gate.axes[1]) for spec in (self.gate, self.up, self.down))
        biases = tuple(_whole_middle(spec, self.gate.axes[1]) for spec in self.biases)
        return replace(self, gate=gate, up=up, down=down, biases=biases)

    def share(self, part: AxisShard) -> ExpertRange | None:
        """Returns the experts of a core with this part of them (None: all)."""
        (start, count), *_ = part.ranges
        return None if count == self.experts else ExpertRange(start, count)

    def own_fields(self, cut: RankContext) -> Mapping[str, Any]:
        """Returns a rank's fields; only the first rank has the last bias, since the sum over ranks must add
        it once."""
        once = self.biases[: 2 if cut.rank and self.sums() else None]
        return {
            "ffn": cut.width(self.gate.axes[1]),
            "biases": once,
            "own": self.share(cut.part(self.gate.axes[0])),
        }

    def out_width(self, cut: RankContext) -> int:
        width = cut.value(self.x).width
        return width if self.share(cut.part(self.gate.axes[0])) is None else self.top_k * width

    def sums(self) -> bool:
        return self.gate.axes[1].is_cut

    def read_bytes(self, fmt: Format) -> float:
        return self.top_k / self.experts * Op.read_bytes(self, fmt)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of an expert's three matrices and its gate, and of weighting and adding its
        result.

        Where all experts process all rows, the results of their first two products and of the third are
        tensors of [experts, rows, 2 x ffn] and [experts, rows, hidden] (NxD's
        ExpertMLPs.forward_all_experts): no on-chip memory holds those of a prompt, so each is written to
        memory and read by the next step.  The sum does not fit either; one expert's weighted result is added
        to it after the other's.
        A core that has some of the experts passes all rows through all of them, however few they are, and
        sums their results itself (ExpertMLPsV2.forward_all_experts_EP: expert parallelism has no other path).
        """
        rows, ffn, hidden = self.out.rows, self.ffn, self.x.width
        gate, up, down = (
            matrix_cost(rows, shape, fmt, rates) for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
        )
        gated = passes_beside(rows, GATE, ffn, fmt, rates)
        weighed, added = (passes_beside(rows, one, hidden, fmt, rates) for one in (WEIGH, ADD))
        middle, result = (n * fmt.compute.bytes for n in (2 * ffn, hidden))
        steps = (
            merged((gate, up), rates, written=middle),
            merged((gated, down), rates, read=middle, written=result),
            *summing(weighed, added, rates, result),
        )
        one = merged((gate, up, gated, down, weighed, added), rates)
        if self.own is not None:
            return ExpertsCost(one, steps, self.own.size, self.own.size, 2 * rates.start)
        return ExpertsCost(one, steps, self.experts, self.top_k, 2 * rates.start)

    @property
    def device_width(self) -> int:
        """Width of the result on a device, which sums the results of a core's experts."""
        return self.x.width

    def refuses(self, fmt: Format) -> str | None:
        return refuses_matrix(fmt)

    def routing_fields(self, at: Bindings) -> dict[str, Any]:
        """Returns the arguments by which the native program routes rows to experts and weights their
        results."""
        return {
            "top_k": self.top_k,
            "scoring": self.scoring.value,
            "nearness": self.nearness or 0.0,
            "correction": None if self.correction is None else at.vector(self.correction),
            "groups": self.groups or (1, 1),
            "factor": self.factor or 1.0,
        }

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.experts(
            at.buffer(self.x),
            at.buffer(self.routing),
            at.buffer(self.out),
            at.matrices(self.gate),
            at.matrices(self.up),
            at.matrices(self.down),
            function=self.function.value,
            biases=[at.vector(spec) for spec in self.biases],
            **self.routing_fields(at),
            first=None if self.own is None else self.own.first,
        )


def _whole_middle(spec: WeightSpec, middle: Axis) -> WeightSpec:
    own = fixed(middle.name, middle.width)
    return replace(spec, axes=tuple(own if axis == middle else axis for axis in spec.axes))


@dataclass(frozen=True, slots=True)
class GatherSlots(Transfer):
    """The sum of a mixture whose experts are divided among the cores of a stage.

    Each expert's result comes from the core that holds the expert; every core then weights and adds them in
    the order of `Experts`, so that the bits are those of one core.  The cost is that of Neuron's software,
    which does an all-reduce of sums instead, for a prompt as a reduce-scatter and an all-gather.
    x: [rows, top_k * width] of `mixture`; bounds: the first expert of each core, and the end of the last
    core's.
    """

    x: Value
    routing: Value
    mixture: Experts
    bounds: tuple[int, ...]

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return exchanges(2, self.out, fmt, rates, rates.stage or rates.mesh)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.gather_slots(
            at.buffer(self.x),
            at.buffer(self.routing),
            at.buffer(self.out),
            list(at.stage),
            list(self.bounds),
            **self.mixture.routing_fields(at),
        )
