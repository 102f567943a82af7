"""What makes rows of a step's inputs: tables that are looked up, and patches of images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corepipe.neuron import numerics
from corepipe.neuron.engines import Cost
from corepipe.neuron.graph import Format, InputKind, Value, WeightSpec
from corepipe.neuron.numerics import F32
from corepipe.neuron.ops.base import Bindings, Keeps, Makes, NativeProgram, TwinContext
from corepipe.neuron.ops.costs import gather_cost, matrix_cost
from corepipe.neuron.rates import CoreRates


class RowIndex(StrEnum):
    """By what a row of a table is found."""

    POSITION = "position"
    TYPE = "type"  # BERT's first or second text of a pair


@dataclass(frozen=True, slots=True)
class Embed(Makes):
    """out[r] = table[token[r]]."""

    table: WeightSpec

    @property
    def reads(self) -> InputKind:
        return InputKind.TOKENS

    def read_bytes(self, fmt: Format) -> float:
        return float(self.out.width * fmt.compute.bytes)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return gather_cost(self.out, fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def twin(self, at: TwinContext) -> F32:
        return at.weight(self.table)[at.inputs.tokens]

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.embed(at.buffer(self.out), at.rows(self.table))


@dataclass(frozen=True, slots=True)
class AddEmbedding(Keeps):
    """out = x + table[index of the row + offset]: learned positions, token types."""

    x: Value
    table: WeightSpec
    by: RowIndex = RowIndex.POSITION
    offset: int = 0

    @property
    def reads(self) -> InputKind | None:
        return InputKind.TYPES if self.by is RowIndex.TYPE else None

    def read_bytes(self, fmt: Format) -> float:
        return float(self.out.width * fmt.compute.bytes)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return gather_cost(self.out, fmt, rates)

    def refuses(self, _fmt: Format) -> None:
        return None

    def twin(self, at: TwinContext) -> F32:
        index = at.inputs.types if self.by is RowIndex.TYPE else at.inputs.positions
        rows = at.weight(self.table)[index + self.offset]
        return numerics.add(at[self.x], rows, at.format.compute)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        x, out, table = at.buffer(self.x), at.buffer(self.out), at.rows(self.table)
        native.add_embedding(x, out, table, self.offset, self.by.value)


@dataclass(frozen=True, slots=True)
class PatchEmbed(Makes):
    """out = patch @ weight.T + bias for each patch of an image; row 0 of a sequence is `first` instead.

    weight is [hidden, channels x height x width of a patch]; `first` are the rows of learned vectors that
    precede the patches (ViT's class token, DeiT's distillation token), [count, hidden].
    """

    weight: WeightSpec
    bias: WeightSpec
    first: WeightSpec

    @property
    def reads(self) -> InputKind:
        return InputKind.PATCHES

    def given(self) -> int:
        return self.weight.shape[1]

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return matrix_cost(self.out.rows, self.weight.shape, fmt, rates)
