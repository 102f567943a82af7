"""Pooling of all rows of a sequence into one row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.ops.base import Bindings, NativeProgram, SameWidthOp
from corepipe.neuron.ops.costs import Passes, elementwise_cost
from corepipe.neuron.values import TOKENS, WANTED, Value


class PoolingMode(StrEnum):
    """The modes of pooling, as in sentence-transformers; special tokens are included."""

    FIRST = "first"  # cls
    SECOND = "second"  # DeiT's distillation token; the only row if there is one
    LAST = "last"  # lasttoken
    MEAN = "mean"
    MAX = "max"
    MEAN_SQRT_LEN = "mean_sqrt_len"  # the sum divided by the root of their number
    WEIGHTED_MEAN = "weighted_mean"  # the mean, weighted by position from 1


@dataclass(frozen=True, slots=True)
class SequencePooling(SameWidthOp):
    """Pools the rows of each sequence into one, in fp32 and in the order of its rows, so that bits do not
    depend on the batch.

    x has a row per token, `out` one per sequence: a batch requests one row of each, and holds all rows of a
    sequence.
    """

    x: Value
    mode: PoolingMode

    def contradiction(self) -> str | None:
        fits = self.x.rows == TOKENS and self.out.rows == WANTED
        return None if fits else "Pooling makes one wanted row of rows of tokens"

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return elementwise_cost(self.x, Passes(one=1), fmt, rates)

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.pool(self.mode.value, at.buffer(self.x), at.buffer(self.out))
