"""Costs of Ops whose kernels were simulated: times at a few shapes, interpolated between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips.engines import AttentionCost, Cost, Engines
from corepipe.neuron.step import StepShape

Numbers = npt.NDArray[np.float64]
"""A number for each field of `KernelTime`; [fields, n] at n sizes."""


class KernelTime(NamedTuple):
    """One simulated run: seconds, those that each engine was busy, and bytes read from HBM and written."""

    seconds: float
    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    dma: float = 0.0
    read: float = 0.0
    written: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelAxis:
    """The sizes along one axis at which kernels are simulated: `first`, then ever `factor` times as much.

    last: the largest of them; the times of larger sizes lie on the line through those of the last two.
    apart: what is interpolated is the time for each unit of the size.  A time that grows with the size and
    with its square, as that of a whole prompt's attention, is then met between the sizes too.
    """

    first: tuple[int, ...]
    factor: int
    last: float = inf
    apart: bool = False

    def up_to(self, most: float) -> list[int]:
        """Returns the sizes between which all sizes up to `most` lie, and one beyond, if there is one."""
        found = list(self.first)
        while found[-1] <= most and found[-1] < self.last:
            found.append(found[-1] * self.factor)
        return found

    def needed(self, most: float) -> list[int]:
        """Returns the sizes from which the times of all sizes up to `most` are interpolated."""
        knots = self.up_to(most)
        return knots[: bisect_left(knots, most) + 1]

    def weights(self, size: float) -> list[tuple[int, float]]:
        """Returns the neighbours of a size with the weights of their times; only those that count."""
        knots = self.up_to(size)
        size = max(size, knots[0])
        at = min(bisect_right(knots, size) - 1, len(knots) - 2)
        low, high = knots[at], knots[at + 1]
        share = (size - low) / (high - low)
        scales = (size / low, size / high) if self.apart else (1.0, 1.0)
        pairs = [(low, (1 - share) * scales[0]), (high, share * scales[1])]
        return [(knot, weight) for knot, weight in pairs if weight]


class KernelCurve:
    """The times of one kernel by one or two sizes, simulated where they are first asked for.

    Between the simulated sizes the times are interpolated along each axis, and they are exact at them.
    measure: simulates the kernel at a size along each axis (0: there is no second one).
    """

    def __init__(
        self,
        measure: Callable[[int, int], KernelTime],
        first: KernelAxis,
        second: KernelAxis | None = None,
    ) -> None:
        self._measure, self._settled = measure, False
        self._first, self._second = first, second
        self.known: dict[tuple[int, int], KernelTime] = {}

    def settle(self, most: float, most_of_second: float) -> None:
        """Simulates the kernel at all sizes that are needed up to these; no kernel runs after that."""
        seconds = [0] if self._second is None else self._second.needed(most_of_second)
        for x in self._first.needed(most):
            for y in seconds:
                self._at(x, y)
        self._settled = True

    def numbers(self, x: float, ys: npt.NDArray[np.float64]) -> Numbers:
        """Returns [fields, n]: of the size x along the first axis, and each of ys along the second."""
        if self._second is None:
            return np.repeat(self._column(x, 0)[:, None], len(ys), axis=1)
        knots = np.array(self._second.up_to(float(ys.max())))
        ys = np.maximum(ys, knots[0])
        low = np.minimum(np.searchsorted(knots, ys, "right") - 1, len(knots) - 2)
        share = (ys - knots[low]) / (knots[low + 1] - knots[low])
        columns = np.zeros((len(KernelTime._fields), len(knots)))
        for at in {*low.tolist(), *(low + 1)[share > 0].tolist()}:
            columns[:, at] = self._column(x, int(knots[at]))
        found: Numbers = (1 - share) * columns[:, low] + share * columns[:, low + 1]
        return found

    def _column(self, x: float, y: int) -> Numbers:
        parts = [weight * np.array(self._at(knot, y)) for knot, weight in self._first.weights(x)]
        return np.asarray(sum(parts))

    def _at(self, x: int, y: int) -> KernelTime:
        if (x, y) not in self.known:
            if self._settled:
                raise LookupError(f"no kernel was simulated at {x}, {y}")
            self.known[x, y] = self._measure(x, y)
        return self.known[x, y]


class KernelSteps(StrEnum):
    """The way in which a step's shape gives the sizes of a kernel's runs."""

    ROWS = "rows"  # one run for all rows
    PROMPTS = "prompts"  # a run for each sequence: its rows, and the tokens before them
    TOKENS = "tokens"  # one run for all rows, each a sequence of its own: rows, and their mean context


@dataclass(frozen=True, slots=True)
class PhaseCurve:
    """A kernel's times for the steps of one kind.

    each: rows of the kernel for a row of the Op.
    """

    curve: KernelCurve
    steps: KernelSteps
    each: float = 1.0

    def numbers(self, rows: int, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> Numbers:
        """Returns the numbers [fields, n] of steps with these totals of context tokens."""
        if self.steps is KernelSteps.PROMPTS:
            before = np.maximum(0.0, (kv_tokens - rows) / sequences)
            return sequences * self.curve.numbers(rows / sequences * self.each, before)
        return self.curve.numbers(rows * self.each, kv_tokens / max(1, sequences))


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The cost of an Op that a simulated kernel computes, in prompts' steps, in decode steps, or in both.

    own: the Op's cost, for the steps without a kernel; it also says what the Op's time depends on.  flops are
    its own: the kernel does the Op's work.
    rows: number of the row set.  least: rows from which on the kernel is used.  split: ranks that share the
    rows of a prefill.
    """

    rows: int
    prompts: PhaseCurve | None
    decodes: PhaseCurve | None
    own: Cost
    least: int = 1
    split: int = 1

    def engines(self, shape: StepShape) -> Engines:
        rows = shape.rows_of(self.rows)
        phase = self.decodes if shape.decodes else self.prompts
        if phase is None or rows < self.least:
            return self.own.engines(shape)
        if self.split > 1 and not shape.decodes:
            rows = -(-rows // self.split)
        numbers = phase.numbers(rows, shape.sequences, np.array([shape.kv_tokens]))
        time = KernelTime(*numbers[:, 0].tolist())
        busiest = max(time.tensor, time.vector, time.scalar, time.dma)
        return Engines(
            time.tensor,
            time.vector,
            time.scalar,
            time.dma,
            start=time.seconds - busiest,
            read=time.read,
            written=time.written,
            flops=self.own.engines(shape).flops,
        )

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns `engines(...).seconds` of decode steps, computed with the same operations."""
        if self.decodes is None or sequences < self.least:
            assert isinstance(self.own, AttentionCost)
            return self.own.decode_seconds(sequences, kv_tokens)
        numbers = self.decodes.numbers(sequences, sequences, kv_tokens)
        busiest = numbers[1:5].max(axis=0)
        found: npt.NDArray[np.float64] = (numbers[0] - busiest) + busiest
        return found
