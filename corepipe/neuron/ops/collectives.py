"""Collectives and transfers between cores, which the compiler inserts.

Send and Receive cost the core nothing: the DMA engines move activations.
"""

from __future__ import annotations

from dataclasses import dataclass

from corepipe.neuron.chips.engines import Cost, OpCost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.ops.base import Bindings, NativeProgram, Transfer
from corepipe.neuron.ops.costs import exchanges
from corepipe.neuron.values import Value


@dataclass(frozen=True, slots=True)
class AllReduce(Transfer):
    """Sum over the tensor group, added in rank order in fp32, rounded once."""

    x: Value

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return exchanges(2, self.out, fmt, rates, rates.mesh)  # a reduce-scatter and an all-gather

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.all_reduce(at.buffer(self.x), at.buffer(self.out), list(at.group))


@dataclass(frozen=True, slots=True)
class AllGather(Transfer):
    """Concatenation over the tensor group in rank order; `out` is as wide as the unsplit axis.

    Ranks may contribute different widths, and padding at the end of `x` is dropped.
    """

    x: Value
    widths: tuple[int, ...]

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return exchanges(1, self.out, fmt, rates, rates.mesh)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.all_gather(at.buffer(self.x), at.buffer(self.out), list(at.group), list(self.widths))


@dataclass(frozen=True, slots=True)
class Send(Transfer):
    """Sends x to core `peer` (an index into the replica's Programs); `out` is x itself."""

    x: Value
    peer: int

    def cost(self, _fmt: Format, _rates: CoreRates) -> Cost:
        return OpCost(self.out.rows.number)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.send(at.buffer(self.x), self.peer, self.x.rows.name)


@dataclass(frozen=True, slots=True)
class Receive(Transfer):
    """Receives the next value that core `peer` sends."""

    peer: int

    def cost(self, _fmt: Format, _rates: CoreRates) -> Cost:
        return OpCost(self.out.rows.number)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.receive(at.buffer(self.out), self.peer, self.out.rows.name)
