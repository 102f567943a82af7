"""Ops on the elements of rows, and the selection of rows."""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.formats import Function
from corepipe.neuron.ops.base import Bindings, NativeProgram, SameWidthOp
from corepipe.neuron.ops.costs import GATE, Passes
from corepipe.neuron.values import Value


@dataclass(frozen=True, slots=True)
class GatedActivation(SameWidthOp):
    """out = function(gate) * up."""

    passes = GATE

    gate: Value
    up: Value
    function: Function = Function.SILU

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.glu(at.buffer(self.gate), at.buffer(self.up), at.buffer(self.out), self.function.value)


@dataclass(frozen=True, slots=True)
class ElementwiseActivation(SameWidthOp):
    """out = function(x)."""

    passes = Passes(scalar=1)

    x: Value
    function: Function

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.activation(self.function.value, at.buffer(self.x), at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class Clamp(SameWidthOp):
    """out = x, limited to -limit .. limit."""

    passes = Passes(one=1)

    x: Value
    limit: float

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.clamp(at.buffer(self.x), self.limit, at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class ScaleRows(SameWidthOp):
    """out = x times a constant, and times the row's own factor `by` (of width 1), if given."""

    passes = Passes(one=1)

    x: Value
    factor: float = 1.0
    by: Value | None = None

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        by = None if self.by is None else at.buffer(self.by)
        native.scale(at.buffer(self.x), self.factor, at.buffer(self.out), by)


@dataclass(frozen=True, slots=True)
class Add(SameWidthOp):
    """out = a + b."""

    passes = Passes(one=1)  # added to a matrix product in PSUM (nki/api/nki/isa, tensor_tensor)

    a: Value
    b: Value

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.add(at.buffer(self.a), at.buffer(self.b), at.buffer(self.out))


@dataclass(frozen=True, slots=True)
class SelectRows(SameWidthOp):
    """Keeps the rows whose logits are requested."""

    passes = Passes(one=1)

    x: Value

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.select_rows(at.buffer(self.x), at.buffer(self.out))
