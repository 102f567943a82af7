"""Ops that make rows of a step's inputs: table lookups, and patches of images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isqrt

import numpy as np

from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops.base import Bindings, NativeProgram, NewAxisOp, SameWidthOp
from corepipe.neuron.ops.costs import gather_cost, matrix_cost, refuses_matrix
from corepipe.neuron.values import GraphInput, InputKind, Value, WeightSpec


class RowIndex(StrEnum):
    """The index by which a row of a table is looked up."""

    POSITION = "position"
    TYPE = "type"  # BERT's first or second text of a pair


@dataclass(frozen=True, slots=True)
class TokenEmbedding(NewAxisOp):
    """out[r] = table[token[r]]."""

    table: WeightSpec

    @property
    def reads(self) -> InputKind:
        return InputKind.TOKENS

    def read_bytes(self, fmt: Format) -> float:
        return float(self.out.width * fmt.compute.bytes)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return gather_cost(self.out, fmt, rates)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.embed(at.buffer(self.out), at.rows(self.table))


@dataclass(frozen=True, slots=True)
class AddEmbedding(SameWidthOp):
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

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        x, out, table = at.buffer(self.x), at.buffer(self.out), at.rows(self.table)
        native.add_embedding(x, out, table, self.offset, self.by.value)


def patches_of(image: F32, given: GraphInput) -> F32:
    """Returns the input rows of an image: zeros for the learned vectors, then its square patches, row by row,
    each channel by channel.

    image: [channels, height, width].  Returns [rows, channels x height x width of a patch].
    """
    channels, side, _ = given.shape
    _, height, width = image.shape
    grid = image.reshape(channels, height // side, side, width // side, side).transpose(1, 3, 0, 2, 4)
    patches = grid.reshape(-1, channels * side * side)
    return np.concatenate((np.zeros((given.after, patches.shape[1]), np.float32), patches))


@dataclass(frozen=True, slots=True)
class PatchEmbed(NewAxisOp):
    """out = patch @ weight.T + bias for each patch of an image; the first rows of a sequence are `first`.

    weight is [hidden, channels x height x width of a square patch], whose pixels of one channel are the unit
    of its second axis; `first` are the rows of learned vectors that precede the patches (ViT's class token,
    DeiT's distillation token), [count, hidden].
    """

    weight: WeightSpec
    bias: WeightSpec
    first: WeightSpec

    @property
    def reads(self) -> InputKind:
        return InputKind.PATCHES

    @property
    def input(self) -> GraphInput:
        pixels = self.weight.axes[1]
        side = isqrt(pixels.unit)
        return GraphInput(
            self.reads, self.out.rows, (pixels.width // pixels.unit, side, side), self.first.shape[0]
        )

    def given(self) -> int:
        return self.weight.shape[1]

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return matrix_cost(self.out.rows, self.weight.shape, fmt, rates)

    def refuses(self, fmt: Format) -> str | None:
        return refuses_matrix(fmt)
