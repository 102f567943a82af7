"""The cost of an Op on a core for any step: seconds of each engine, bytes and operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from corepipe.neuron.step import StepShape


@dataclass(frozen=True, slots=True)
class Engines:
    """Seconds of each engine in an Op, `start` seconds after it begins; bytes and operations."""

    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    dma: float = 0.0
    collectives: float = 0.0
    start: float = 0.0
    read: float = 0.0
    written: float = 0.0
    flops: float = 0.0

    @property
    def seconds(self) -> float:
        return self.start + max(self.tensor, self.vector, self.scalar, self.dma, self.collectives)


NOTHING = Engines()


class Cost(Protocol):
    """An Op's cost on a core, for any step."""

    def engines(self, shape: StepShape) -> Engines:
        """Returns the seconds of each engine in a step."""


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of an Op that depends on its rows alone: nothing for no rows, else fixed + per row.

    rows: number of the row set.  tensor: seconds per row, for at least `min_rows` rows.  vector, scalar,
    collectives, dma: (fixed, per row).
    ring: seconds of a collective's steps from neighbour to neighbour, and the part of them that a row adds.
    split: ranks that share the rows of a prefill.
    """

    rows: int
    tensor: float = 0.0
    min_rows: float = 0
    vector: tuple[float, float] = (0.0, 0.0)
    scalar: tuple[float, float] = (0.0, 0.0)
    dma: tuple[float, float] = (0.0, 0.0)
    collectives: tuple[float, float] = (0.0, 0.0)
    ring: tuple[float, float] = (0.0, 0.0)
    start: float = 0.0
    read: tuple[float, float] = (0.0, 0.0)
    written: float = 0.0
    flops: float = 0.0
    split: int = 1

    def engines(self, shape: StepShape) -> Engines:
        rows = shape.rows_of(self.rows)
        if not rows:
            return NOTHING
        if self.split > 1 and not shape.decodes:
            rows = -(-rows // self.split)
        return Engines(
            tensor=self.tensor * max(rows, self.min_rows),
            vector=max(self.vector[0], self.vector[1] * rows),
            scalar=max(self.scalar[0], self.scalar[1] * rows),
            dma=self.dma[0] + self.dma[1] * rows,
            collectives=self.collectives[0]
            + self.collectives[1] * rows
            + self.ring[0] * min(1.0, self.ring[1] * rows),
            start=self.start,
            read=self.read[0] + self.read[1] * rows,
            written=self.written * rows,
            flops=self.flops * rows,
        )


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """The cost of attention over the contexts.  `window` bounds a sequence's context and a row's keys.

    tensor: seconds per key that one row of a key/value head's queries attends to; such a head has `group`
    queries, and at least `min_rows` rows count. vector, scalar: seconds per attended key. traffic: seconds
    per context token. write: seconds per row. start: seconds of an Op; queued: seconds for each sequence's
    keys and values, in addition. spilled: seconds per attended key for prompts whose scores exceed the `held`
    keys that fit in on-chip memory, in steps of at least `spills_from` prompts; `spilled_bytes`: the bytes
    written to memory and read back. scattered: seconds per row of several prompts in one step, instead of
    `write`. lanes: rows of a step at which a softmax fills the lanes of VectorE (one lane a query row: 128
    partitions of a core, nki/guides/architecture/trainium_inferentia2_arch.rst).  A decode step has few rows,
    and its softmax follows the transfer of keys and values.  That it does is inferred from measurements:
    docs/prediction.md."""

    rows: int
    causal: bool
    window: int | None
    tensor: float
    group: int
    min_rows: int
    vector: float
    scalar: float
    traffic: float
    write: float
    start: float
    queued: float
    token_bytes: int
    flops: float
    held: float = inf
    spills_from: int = 1
    lanes: float = 0.0
    spilled: float = 0.0
    spilled_bytes: tuple[float, float] = (0.0, 0.0)
    scattered: float = 0.0

    def engines(self, shape: StepShape) -> Engines:
        rows = shape.rows_of(self.rows)
        if not rows:
            return NOTHING
        seen = self.seen(rows, shape.sequences, shape.kv_tokens)
        attended = self.attended(rows, shape)
        kept = rows if self.causal else 0
        old = max(0, seen - rows)
        prompts = not shape.decodes
        spills = prompts and shape.sequences >= self.spills_from and attended > self.held
        out = attended if spills else 0
        write = self.scattered if prompts and shape.sequences > 1 else self.write
        after = 0.0 if prompts else self._after_reads(rows) * attended
        return Engines(
            tensor=self.tensor * max(self.group * attended, self.min_rows * seen),
            vector=self.vector * attended,
            scalar=self.scalar * attended,
            dma=self.queued * shape.sequences + (self.traffic * old + write * kept) + self.spilled * out,
            start=self.start + after,
            read=float(self.token_bytes * old) + self.spilled_bytes[1] * out,
            written=float(self.token_bytes * kept) + self.spilled_bytes[0] * out,
            flops=self.flops * attended,
        )

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns `engines(...).seconds` of decode steps, computed with the same operations."""
        reach = sequences * self.window + sequences if self.window is not None else None
        seen = kv_tokens if reach is None else np.minimum(kv_tokens, reach)
        attended = seen if reach is None else np.minimum(kv_tokens, sequences * (self.window or 0))
        if not self.causal:
            attended = sequences * -(-kv_tokens // max(1, sequences))
        kept = sequences if self.causal else 0
        old = np.maximum(0, seen - sequences)
        dma = self.queued * sequences + (self.traffic * old + self.write * kept)
        tensor = self.tensor * np.maximum(self.group * attended, self.min_rows * seen)
        busiest = np.maximum(
            np.maximum(tensor, dma), np.maximum(self.vector * attended, self.scalar * attended)
        )
        after = np.asarray(self._after_reads(sequences) * attended, np.float64)
        total: npt.NDArray[np.float64] = self.start + after + busiest
        return total

    def _after_reads(self, rows: int) -> float:
        """Returns the seconds per attended key of a decode step's softmax that nothing hides."""
        return self.vector * max(1.0, self.lanes / rows) if self.lanes else 0.0

    def seen(self, rows: int, sequences: int, kv_tokens: int) -> int:
        """Returns the tokens of the contexts that are within the window."""
        return kv_tokens if self.window is None else min(kv_tokens, sequences * self.window + rows)

    def attended(self, rows: int, shape: StepShape) -> int:
        """Returns the pairs of a row and a key."""
        if not self.causal:
            return rows * -(-shape.kv_tokens // max(1, shape.sequences))
        return shape.attended if self.window is None else min(shape.attended, rows * self.window)


@dataclass(frozen=True, slots=True)
class ExpertsCost:
    """The cost of a mixture of experts: few rows load the experts that they are routed to, many rows go
    through all experts.

    As NxD Inference does it (forward_selective_loading while rows x top_k < experts, else
    forward_all_experts).  `one` is an expert's own cost over its rows; rows are routed to `top_k` of
    `experts`.
    found: seconds until an expert's weights are transferred, since their address is known only after the
    router has run.
    steps: an expert's part of each step that all experts run together; each step waits for the previous one,
    since its results ([experts, rows, width]) go through memory.
    """

    one: OpCost
    steps: tuple[OpCost, ...]
    experts: int
    top_k: int
    found: float

    def engines(self, shape: StepShape) -> Engines:
        rows = shape.rows_of(self.one.rows)
        if not rows:
            return NOTHING
        chosen = rows * self.top_k
        if chosen < self.experts:
            one = self.one.engines(StepShape((1,) * (self.one.rows + 1), 1, 1, 1))
            return _times(one, chosen, self.found)
        return _in_turn([_times(step.engines(shape), self.experts, 0.0) for step in self.steps])


@dataclass(frozen=True, slots=True)
class ScanCost:
    """The cost of a recurrent Op: tokens of answers are processed one by one, those of prompts `chunk` at a
    time.

    step: per token; whole: per chunk, which takes as long when it is not full; moved: per sequence, for its
    state.
    """

    rows: int
    step: Engines
    chunk: int
    whole: Engines
    moved: Engines

    def engines(self, shape: StepShape) -> Engines:
        rows = shape.rows_of(self.rows)
        if not rows:
            return NOTHING
        one, count = self.step, rows
        if not shape.decodes:
            one, count = self.whole, shape.sequences * -(-rows // (shape.sequences * self.chunk))
        moved = self.moved
        return Engines(
            tensor=one.tensor * count,
            vector=one.vector * count,
            scalar=one.scalar * count,
            dma=moved.dma * shape.sequences,
            start=self.step.start,
            read=moved.read * shape.sequences,
            written=moved.written * shape.sequences,
            flops=one.flops * count,
        )


def _times(one: Engines, count: int, found: float) -> Engines:
    """Returns `one` times `count`, each with `found` more seconds of transfers."""
    return Engines(
        tensor=one.tensor * count,
        vector=one.vector * count,
        scalar=one.scalar * count,
        dma=(one.dma + found) * count,
        start=one.start,
        read=one.read * count,
        written=one.written * count,
        flops=one.flops * count,
    )


def _in_turn(steps: Sequence[Engines]) -> Engines:
    """Combines steps that wait for one another: the busiest engine's idle time is put before its start."""
    names = [field.name for field in fields(Engines)]
    whole = Engines(**{name: sum(getattr(step, name) for step in steps) for name in names})
    idle = sum(step.seconds for step in steps) - whole.seconds
    return replace(whole, start=whole.start + idle)
