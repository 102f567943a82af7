"""Ops on the elements of rows, and the selection of rows."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format, Function
from corepipe.neuron.numerics import arithmetic
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops.base import Bindings, NativeProgram, ReferenceContext, SameWidthOp
from corepipe.neuron.ops.costs import GATE, Passes, elementwise_cost
from corepipe.neuron.values import Value


@dataclass(frozen=True, slots=True)
class GatedActivation(SameWidthOp):
    """out = function(gate) * up."""

    gate: Value
    up: Value
    function: Function = Function.SILU

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.out, GATE, fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        return arithmetic.gated(at[self.gate], at[self.up], self.function, at.format.compute)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.glu(at.buffer(self.gate), at.buffer(self.up), at.buffer(self.out), self.function.value)


@dataclass(frozen=True, slots=True)
class ElementwiseActivation(SameWidthOp):
    """out = function(x)."""

    x: Value
    function: Function

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.out, Passes(scalar=1), fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        return arithmetic.activation(at[self.x], self.function, at.format.compute)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.activation(self.function.value, at.buffer(self.x), at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class Clamp(SameWidthOp):
    """out = x, limited to -limit .. limit."""

    x: Value
    limit: float

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.out, Passes(one=1), fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        return arithmetic.clamp(at[self.x], self.limit, at.format.compute)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.clamp(at.buffer(self.x), self.limit, at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class ScaleRows(SameWidthOp):
    """out = x times a constant, and times the row's own factor `by` (of width 1), if given."""

    x: Value
    factor: float = 1.0
    by: Value | None = None

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.out, Passes(one=1), fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        by = None if self.by is None else at[self.by]
        return arithmetic.scale(at[self.x], self.factor, at.format.compute, by)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        by = None if self.by is None else at.buffer(self.by)
        native.scale(at.buffer(self.x), self.factor, at.buffer(self.out), by)


@dataclass(frozen=True, slots=True)
class Add(SameWidthOp):
    """out = a + b."""

    a: Value
    b: Value

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        passes = Passes(one=1)  # added to a matrix product in PSUM (nki/api/nki/isa, tensor_tensor)
        return elementwise_cost(self.out, passes, fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        return arithmetic.add(at[self.a], at[self.b], at.format.compute)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.add(at.buffer(self.a), at.buffer(self.b), at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class SelectRows(SameWidthOp):
    """Keeps the rows whose logits are requested."""

    x: Value

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.out, Passes(one=1), fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def reference(self, at: ReferenceContext) -> F32:
        return at[self.x][at.inputs.logit_rows]

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.select_rows(at.buffer(self.x), at.buffer(self.out))
