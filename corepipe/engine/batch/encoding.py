"""Batches of requests that generate nothing: texts as the executor takes them, and the values that it gives
for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Self

import numpy as np
import numpy.typing as npt

from corepipe.engine.batch.arrays import (
    NO_IDS,
    BlockTable,
    Ids,
    Join,
    adapter_rows,
    adapters_of,
    join_tables,
    positions_of,
    tokens_of,
)
from corepipe.engine.batch.requests import SampledRequest, announce
from corepipe.engine.batch.runner import OnStart, RequestFailure, StepResult, SubmittedStep
from corepipe.engine.messages import Submit
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import AddEmbedding, RowIndex, patches_of
from corepipe.neuron.step import AdapterKind, Executor, StepInputs
from corepipe.neuron.timing.cost import StepShape
from corepipe.neuron.values import TOKENS, GraphInput, InputKind, WeightSpec, image_shape
from corepipe.scheduler.request import Batch, Chunk, Request

OVERFLOW = (
    "What the model computes overflowed: instead of numbers it gave infinity or NaN. Its weights do not fit "
    "the number format that it is served in."
)

LITTLE_ENDIAN = np.dtype("<f4")

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoding:
    """The inputs and outputs of a graph that generates nothing.

    per_token: it gives a row for each token; otherwise one for each sequence, at the first of its rows, or
    where each token only attends to those before it (`causal`) at the last. keeps_state: the graph keeps
    state, in KV blocks. types: it reads which of two texts a token belongs to. one_type: its table of types
    has a single row, so that both texts have type 0 (RoBERTa). image: its input of images, each of `rows`
    rows (None: it reads texts).
    """

    per_token: bool = False
    causal: bool = False
    keeps_state: bool = False
    types: bool = False
    one_type: bool = False
    image: GraphInput | None = None
    rows: int = 0

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Reads the inputs of a graph and its first output."""
        image = next((given for given in graph.inputs if given.kind is InputKind.PATCHES), None)
        return cls(
            per_token=graph.outputs[0].value.rows == TOKENS,
            causal=graph.causal,
            keeps_state=any(True for _ in graph.states()),
            types=any(given.kind is InputKind.TYPES for given in graph.inputs),
            one_type=any(table.shape[0] == 1 for table in _tables_of_types(graph)),
            image=image,
            rows=0 if image is None else graph.max_positions,
        )

    def check(self, submit: Submit) -> None:
        """Raises ValueError for a request without an image where the graph reads one, or with one of another
        size."""
        wanted = 0 if self.image is None else prod(image_shape(self.image, self.rows))
        if len(submit.image) != wanted * LITTLE_ENDIAN.itemsize:
            raise ValueError(f"an image must have {wanted} fp32 numbers, not {len(submit.image)} bytes")
        if self.image is not None and len(submit.prompt) != self.rows:
            raise ValueError(f"an image has {self.rows} rows for this model, not {len(submit.prompt)}")

    def shape(self, chunks: Sequence[Chunk], results: int) -> StepShape:
        """Returns the shape of a batch, which decides its time."""
        if self.keeps_state:
            return StepShape.of([(c.start, c.count) for c in chunks], results)
        return StepShape.whole([c.count for c in chunks], results)


class EncodingRunner:
    """Hands batches to one replica's executor; implements `replica.BatchRunner` for requests that generate
    nothing. on_start, join, kinds: see `runner.Runner`."""

    def __init__(
        self,
        executor: Executor,
        encoding: Encoding,
        on_start: OnStart,
        join: Join = join_tables,
        kinds: Mapping[int, AdapterKind] | None = None,
    ) -> None:
        self._executor = executor
        self._kinds = kinds
        self._encoding = encoding
        self._on_start = on_start
        self._join = join
        self._tables: dict[str, BlockTable] = {}

    def add(self, request: Request) -> None:
        """Takes on a request before its first batch."""
        self._tables[request.id] = BlockTable()

    def remove(self, request_id: str) -> None:
        """Forgets a request that has ended; batches in flight may still hold it."""
        del self._tables[request_id]

    def submit(self, batch: Batch) -> SubmittedStep:
        """Starts a batch and does not wait."""
        chunks = batch.chunks
        announce([_sampled(chunk.request) for chunk in chunks], self._on_start)
        starts = np.array([0, *accumulate([chunk.count for chunk in chunks])], np.int32)
        wanted = self._logit_rows(chunks, starts)
        slots = [_sampled(chunk.request).adapter for chunk in chunks]
        inputs = StepInputs(
            tokens=tokens_of(chunks),
            positions=positions_of(chunks, starts),
            sequence_starts=starts,
            block_tables=self._block_tables(chunks),
            logit_rows=wanted,
            types=self._types(chunks, starts),
            patches=self._patches(chunks),
            adapters=adapters_of(slots, starts),
        )
        ticket = self._executor.submit(inputs, None)
        shape = self._encoding.shape(chunks, len(wanted))
        if self._kinds:
            shape = shape._replace(adapters=adapter_rows(chunks, slots, self._kinds))
        nothing: list[int | None] = [None] * len(chunks)
        return SubmittedStep(
            ticket, batch, nothing, {}, NO_IDS, shape, value_rows=self._value_rows(chunks, starts)
        )

    def wait(self, step: SubmittedStep) -> StepResult:
        """Waits for a batch; batches are waited for in the order in which they were submitted."""
        output = self._executor.wait(step.ticket)
        assert output.values is not None
        finite = np.isfinite(output.values)
        failures = [] if finite.all() else _overflows(step, finite)
        return StepResult(step, output, [()] * len(step.drawn_rows), failures)

    def _logit_rows(self, chunks: Sequence[Chunk], starts: Ids) -> Ids:
        """Returns one row of each sequence whose last token is among its rows."""
        rows = starts[1:] - 1 if self._encoding.causal else starts[:-1]
        samples = [chunk.samples for chunk in chunks]
        return rows.copy() if all(samples) else rows[samples]

    def _types(self, chunks: Sequence[Chunk], starts: Ids) -> Ids:
        """Returns the type of each row [M]; [0] where the graph reads none."""
        if not self._encoding.types:
            return NO_IDS
        return np.zeros(starts[-1], np.int32) if self._encoding.one_type else _types(chunks, starts)

    def _value_rows(self, chunks: Sequence[Chunk], starts: Ids) -> Sequence[range]:
        """Returns the rows of each chunk's values in a result; an empty range where more of its prompt is to
        come."""
        if self._encoding.per_token:
            return [range(start, end) for start, end in pairwise(starts.tolist())]
        ends = accumulate([int(chunk.samples) for chunk in chunks])
        return [range(end - chunk.samples, end) for chunk, end in zip(chunks, ends, strict=True)]

    def _block_tables(self, chunks: Sequence[Chunk]) -> Ids:
        """Returns the tables [S, B] of each group of layers in turn; no columns where no state is kept."""
        if not self._encoding.keeps_state:
            return np.empty((len(chunks), 0), np.int32)
        return self._join([self._tables[chunk.request.id].follow(chunk.request) for chunk in chunks])

    def _patches(self, chunks: Sequence[Chunk]) -> F32:
        """Returns the patch of an image for each row [M, width]; [0, 0] where texts are read."""
        given, rows = self._encoding.image, self._encoding.rows
        if given is None:
            return np.empty((0, 0), np.float32)
        shape = image_shape(given, rows)
        images = (np.frombuffer(_sampled(chunk.request).image, LITTLE_ENDIAN) for chunk in chunks)
        return np.concatenate([patches_of(image.reshape(shape), given) for image in images])


def values_of(result: StepResult, chunk: int) -> tuple[bytes, int]:
    """Returns the values of a chunk's text: fp32 in little-endian order, and the number of rows."""
    values, rows = result.output.values, result.step.value_rows[chunk]
    assert values is not None
    found: npt.NDArray[np.float32] = values[rows.start : rows.stop]
    return found.astype(LITTLE_ENDIAN, copy=False).tobytes(), len(rows)


def _overflows(step: SubmittedStep, finite: npt.NDArray[np.bool_]) -> list[RequestFailure]:
    """Returns failures for the requests whose rows are not all numbers."""
    return [
        RequestFailure(chunk.request, "overflow", OVERFLOW)
        for chunk, rows in zip(step.batch.chunks, step.value_rows, strict=True)
        if not finite[rows.start : rows.stop].all()
    ]


def _tables_of_types(graph: Graph) -> Iterator[WeightSpec]:
    """Yields the tables whose rows are added by token type."""
    for op in graph.ops:
        if isinstance(op, AddEmbedding) and op.by is RowIndex.TYPE:
            yield op.table


def _types(chunks: Sequence[Chunk], starts: Ids) -> Ids:
    """Returns 0 for rows of a request's first text, 1 for those of its second [M]."""
    types = np.zeros(starts[-1], np.int32)
    for chunk, start, end in zip(chunks, starts[:-1], starts[1:], strict=True):
        if second := _sampled(chunk.request).second:
            types[start + max(0, second - chunk.start) : end] = 1
    return types


def _sampled(request: Request) -> SampledRequest:
    assert isinstance(request, SampledRequest)
    return request
