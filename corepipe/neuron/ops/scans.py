"""Recurrent layers, which keep a state of fixed size per sequence, however long the sequence is.

The host runs the plain recurrence, token after token, for prompts and answers alike: its bits do not depend
on how a prompt is cut, so a recomputed prompt gives the same bits.  A device computes prompts in chunks, by
products of matrices (Dao & Gu 2024, Mamba-2, section 6), the same up to rounding; the cost is that form's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.chips.engines import Cost, Engines, ScanCost
from corepipe.neuron.chips.rates import TILE, CoreRates
from corepipe.neuron.formats import DType, Format, Function
from corepipe.neuron.ops.base import Bindings, NativeProgram, SameWidthOp
from corepipe.neuron.ops.costs import Passes, held_elements
from corepipe.neuron.values import StateKind, StateSpec, Value, WeightSpec

CHUNK = TILE
"""Tokens of a prompt that a device processes together: as many as fill a side of its array."""

STEP = Passes(one=1, two=2).one + 2 * Passes(one=1, two=2).two
"""Cycles of VectorE for an element of a state at a token of an answer: times its decay, which is one number
per partition; plus the new input; times c, summed.  The last two have two fp32 operands."""

LANES = 16
"""Elements of a head that the native kernels process together."""


@dataclass(frozen=True, slots=True)
class CausalConvolution(SameWidthOp):
    """out[t] = function(bias + the sum over k of weight[:, 0, k] * x[t - (taps - 1) + k]), by channel.

    weight: [channels, 1, taps].  Rows before the first are zeros; the last taps - 1 rows of a sequence are
    kept.
    """

    x: Value
    weight: WeightSpec
    bias: WeightSpec | None
    function: Function

    @property
    def taps(self) -> int:
        return self.weight.shape[2]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the state of a sequence."""
        return self.taps - 1, self.x.width

    @property
    def state(self) -> StateSpec:
        return StateSpec(StateKind.SEQUENCE, per_sequence=prod(self.shape))

    def contradiction(self) -> str | None:
        agree = self.weight.axes[0] == self.x.axis
        return None if agree else f"{self.weight.name} has other channels than what it reads"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        passes = Passes(two=self.taps, scalar=1)  # a product and a sum for each tap at once; the function
        cycles, width = passes.cycles(fmt), self.out.width
        row = Engines(
            vector=cycles * width / rates.vector,
            scalar=passes.scalar * width / rates.scalar,
            flops=2.0 * self.taps * width,
        )
        return _scan_cost(self.out, self.state, row, 1, row, rates)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.convolve(
            at.buffer(self.x),
            at.buffer(self.out),
            np.ascontiguousarray(at.vector(self.weight)[:, 0, :].T),
            None if self.bias is None else at.vector(self.bias),
            self.function.value,
            at.state(self),
        )


@dataclass(frozen=True, slots=True)
class SelectiveScan(SameWidthOp):
    """The recurrence of Mamba-2's heads (Dao & Gu 2024), token after token:

    step = clamp(softplus(dt + dt_bias)); h = exp(-exp(log_rate) step) h + (step x) outer b;
    out = h c + skip x.
    x: [rows, heads x head_dim]; b and c: [rows, groups x states], a group (a key/value head of `heads`)
    shared by neighbouring heads; dt: [rows, heads]; log_rate, dt_bias and skip: [heads].  `limits`: the least
    and the most that a step may be.  h: [heads, head_dim, states] of a sequence, in fp32.
    """

    x: Value
    b: Value
    c: Value
    dt: Value
    log_rate: WeightSpec
    dt_bias: WeightSpec
    skip: WeightSpec
    heads: HeadLayout
    states: int
    limits: tuple[float, float]

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the state of a sequence."""
        return self.heads.heads, self.heads.head_dim, self.states

    @property
    def state(self) -> StateSpec:
        return StateSpec(StateKind.SEQUENCE, per_sequence=prod(self.shape))

    def cost(self, _fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of the recurrence for answers and of the chunked form for prompts.

        A token of an answer costs the passes over each element of the state.  A chunk of a prompt costs, for
        each group, c b^T; and for each head that product, masked by the decay of the state in between, times
        x, c times the state so far, and the part of the next state that x and b make.
        """
        (heads, width, states), groups = self.shape, self.heads.kv_heads
        step = Engines(vector=STEP * prod(self.shape) / rates.vector, flops=6.0 * prod(self.shape))
        products = groups * CHUNK * held_elements(CHUNK, states, rates) + heads * (
            CHUNK * held_elements(width, CHUNK, rates)
            + CHUNK * held_elements(width, states, rates)
            + states * held_elements(width, CHUNK, rates)
        )
        masked, passed = CHUNK * CHUNK, CHUNK * width
        chunk = Engines(
            tensor=2 * products / rates.attention,
            vector=heads * (2 * masked + 3 * passed + 2 * states * width) / rates.vector,
            scalar=heads * masked / rates.scalar,
            flops=2.0 * (groups * masked * states + heads * passed * (CHUNK + 2 * states)),
        )
        return _scan_cost(self.out, self.state, step, CHUNK, chunk, rates)

    def refuses(self, _fmt: Format) -> str | None:
        width = self.heads.head_dim
        return f"has heads of {width} elements, no multiple of {LANES}" if width % LANES else None

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        rates = -np.exp(at.vector(self.log_rate).astype(np.float64))
        native.scan(
            (at.buffer(self.x), at.buffer(self.b), at.buffer(self.c), at.buffer(self.dt)),
            at.buffer(self.out),
            (rates.astype(np.float32), at.vector(self.dt_bias), at.vector(self.skip)),
            self.limits,
            self.states,
            at.state(self),
        )


def _scan_cost(
    out: Value, state: StateSpec, step: Engines, chunk: int, whole: Engines, rates: CoreRates
) -> ScanCost:
    """Returns the cost of a scan, with each sequence's state read and written once per step."""
    size = state.per_sequence * DType.FP32.bytes
    moved = Engines(dma=2 * size / rates.memory, read=float(size), written=float(size))
    return ScanCost(out.rows.number, replace(step, start=rates.start), chunk, whole, moved)
