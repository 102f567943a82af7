"""Reads a checkpoint's weights by blocks of rows, on several threads: only some megabytes of a model are in
memory at a time."""

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
"""Elements of a block, unless a panel has more: it and its intermediate arrays fit in a core's L2 cache."""
KEPT = 1 << 24
"""Bytes: more than any array that is made from a block."""

Result = TypeVar("Result")
Read = Callable[[], Stored]


class TensorSource(Protocol):
    """The files of a model: tensors by name, and a fingerprint that changes with their content."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]: ...

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns a matrix in the integers that the file stores, if those have four bits; other integers come
        as int8."""

    def by_rows(self, name: str) -> bool:
        """Returns True if some rows can be read without the others, also by several threads."""


def read(checkpoint: TensorSource, graph: Graph, spec: WeightSpec, rows: slice = ALL) -> Stored:
    """Returns some rows of a weight, in the form that the graph's format takes from a checkpoint."""
    name = graph.tied.get(spec.name, spec.name)
    by_grid = graph.format.weights is DType.INT4 and spec.role is WeightRole.MATRIX
    return checkpoint.stored(name, rows) if by_grid else checkpoint.read(name, rows)


def blocks_of(spec: WeightSpec) -> list[slice]:
    """Returns the blocks of rows of a weight: so many whole panels of a matrix or a table, one matrix of a
    stack."""
    if spec.role is WeightRole.VECTOR:
        return [ALL]
    if spec.is_stack:
        return [slice(number, number + 1) for number in range(spec.shape[0])]
    count, width = spec.shape[0], math.prod(spec.shape[1:])
    size = max(1, ELEMENTS // width // PANEL) * PANEL
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def readers(checkpoint: TensorSource, graph: Graph, spec: WeightSpec) -> Iterator[Read]:
    """Yields functions that read the blocks of a weight.  A weight that cannot be read by rows is read here,
    whole."""
    if checkpoint.by_rows(graph.tied.get(spec.name, spec.name)):
        yield from (partial(read, checkpoint, graph, spec, rows) for rows in blocks_of(spec))
    else:
        whole = read(checkpoint, graph, spec)
        each = spec.shape[1] if spec.is_stack and not isinstance(whole, np.ndarray) else 1
        yield from (partial(taken, whole, _times(rows, each)) for rows in blocks_of(spec))


def _times(rows: slice, each: int) -> slice:
    """Returns the rows of a range of matrices that stand one below the other, `each` rows per matrix."""
    return rows if rows == ALL else slice(rows.start * each, rows.stop * each)


def keep_freed_memory() -> None:
    """Frees one large array, so that glibc keeps the smaller arrays of blocks instead of returning them to
    the system.

    glibc returns freed memory that is larger than the largest array freed before (M_MMAP_THRESHOLD in
    mallopt(3)); every block's arrays would then be new pages that the system has to clear.
    """
    np.empty(KEPT, np.uint8)


def in_order(tasks: Iterable[Callable[[], Result]], threads: int) -> Generator[Result, None, None]:
    """Yields the tasks' results, in their order; few more tasks than threads are started in advance."""
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
