"""A checkpoint's weights by blocks of rows, on several threads: of a model some megabytes are under way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.kernels.packing import PANEL
from corepipe.neuron.formats import DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.int4 import ALL, Stored, taken
from corepipe.neuron.values import WeightRole, WeightSpec

ELEMENTS = 1 << 18
"""Of a block, where a panel has no more: it and what is made of it on the way fit in a core's L2 cache."""
KEPT = 1 << 24
"""Bytes: more than any array has that is made of a block."""

Result = TypeVar("Result")
Read = Callable[[], Stored]


class TensorSource(Protocol):
    """What a model's files offer: tensors by name, and a fingerprint that changes with their content."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]: ...

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """A matrix on the grid of integers that it is on, if that is of four bits; in int8 from any other."""

    def by_rows(self, name: str) -> bool:
        """Whether some rows are read without the others, also by several threads."""


def read(checkpoint: TensorSource, graph: Graph, spec: WeightSpec, rows: slice = ALL) -> Stored:
    """Some rows of a weight, as the graph's format wants them of a checkpoint."""
    name = graph.tied.get(spec.name, spec.name)
    by_grid = graph.format.weights is DType.INT4 and spec.role is WeightRole.MATRIX
    return checkpoint.stored(name, rows) if by_grid else checkpoint.read(name, rows)


def blocks_of(spec: WeightSpec) -> list[slice]:
    """The rows of a weight: of a matrix or a table so many whole panels at a time, of a stack one matrix."""
    if spec.role is WeightRole.VECTOR:
        return [ALL]
    if spec.is_stack:
        return [slice(number, number + 1) for number in range(spec.shape[0])]
    count, width = spec.shape[0], math.prod(spec.shape[1:])
    size = max(1, ELEMENTS // width // PANEL) * PANEL
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def readers(checkpoint: TensorSource, graph: Graph, spec: WeightSpec) -> Iterator[Read]:
    """What gives the blocks of a weight.  One that is not read by rows is read here, as a whole."""
    if checkpoint.by_rows(graph.tied.get(spec.name, spec.name)):
        yield from (partial(read, checkpoint, graph, spec, rows) for rows in blocks_of(spec))
    else:
        whole = read(checkpoint, graph, spec)
        each = spec.shape[1] if spec.is_stack and not isinstance(whole, np.ndarray) else 1
        yield from (partial(taken, whole, _times(rows, each)) for rows in blocks_of(spec))


def _times(rows: slice, each: int) -> slice:
    """Of matrices that stand one below the other, so many rows each."""
    return rows if rows == ALL else slice(rows.start * each, rows.stop * each)


def keep_freed_memory() -> None:
    """glibc returns what is freed to the system where it is more than the largest array that was freed before
    (M_MMAP_THRESHOLD in mallopt(3)): every block's arrays would be of pages that the system has to clear."""
    np.empty(KEPT, np.uint8)


def in_order(tasks: Iterable[Callable[[], Result]], threads: int) -> Generator[Result, None, None]:
    """What the tasks return, in their order; few more than there are threads are begun ahead."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, "packing") as pool:
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
