"""Transfers between HBM and SBUF, which DMA queues carry out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import record
from corepipe.nki.isa.operations import computed, stored, stored_bits

DMA = (Engine.DMA,)

TRANSPOSED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
"""The order of axes of a transfer that transposes, by rank."""


def dma_copy(dst: View, src: View, *, add: bool = False) -> Instruction:
    """Copies src to dst, through fp32 where the types differ; `add` adds to what dst holds.

    A row is what is contiguous in both.
    """
    _same_size("dma_copy", dst, src)
    instruction = record(
        "dma_copy", DMA, (dst,), (src,), accumulates=add, size=_chip(dst, src), details=rows(dst, src)
    )
    if current().values:
        values = stored_bits(src) if src.dtype == dst.dtype and not add else computed(src)
        stored(computed(dst) + values.reshape(dst.shape) if add else values, dst)
    return instruction


def dma_compute(dst: View, sources: Sequence[View], scales: Sequence[float] | None = None) -> Instruction:
    """Writes the sum of the scaled sources, computed in the DMA engines."""
    _same_size("dma_compute", dst, *sources)
    details = rows(dst, *sources)
    instruction = record("dma_compute", DMA, (dst,), sources, size=_chip(dst, sources[0]), details=details)
    if current().values:
        factors = scales or [1.0] * len(sources)
        terms = [
            computed(s).reshape(dst.shape) * np.float32(f) for s, f in zip(sources, factors, strict=True)
        ]
        stored(sum(terms[1:], terms[0]), dst)
    return instruction


def dma_transpose(dst: View, src: View, axes: Sequence[int] | None = None, dge_mode: str = "") -> Instruction:
    """Copies src to dst, its first and last axes exchanged.  dge_mode: `hwdge` if the kernel asks for it."""
    order = TRANSPOSED.get(src.ndim)
    if order is None or (axes is not None and tuple(axes) != order):
        raise current().refuse("axes", f"dma_transpose: axes {axes} of a tile of shape {src.shape}")
    if dst.size != src.size:
        raise current().refuse(
            "shape", f"dma_transpose: src of shape {src.shape} does not fit into dst of shape {dst.shape}"
        )
    details = {**rows(dst, src.transposed(order)), "dge_mode": dge_mode}
    instruction = record("dma_transpose", DMA, (dst,), (src,), size=_chip(dst, src), details=details)
    if current().values:
        stored(np.transpose(stored_bits(src), order).copy(), dst)
    return instruction


def dma_gather(dst: View, src: View, index: View, *, skip: bool = False, add: bool = False) -> Instruction:
    """Copies row index[p] of src to partition p of dst; `add` adds to what dst holds.

    skip: leaves partitions whose index is outside.
    """
    row = src[0:1]
    details = {**rows(dst, row), "indirect": True}
    instruction = record(
        "dma_gather", DMA, (dst,), (src, index), accumulates=add or skip, size=dst, details=details
    )
    if current().values:
        at, inside = _rows_of(index, src.shape[0], skip)
        values = src.array()[at]
        values = values.astype(np.float32) + computed(dst).reshape(values.shape) if add else values
        if inside.all():
            stored(values, dst)
        else:
            for p in np.flatnonzero(inside):
                stored(values[p : p + 1], dst[int(p) : int(p) + 1])
    return instruction


def dma_scatter(dst: View, src: View, index: View, *, skip: bool = False, add: bool = False) -> Instruction:
    """Copies partition p of src to row index[p] of dst; `add` adds it to what the row holds."""
    details = {**rows(dst[0:1], src), "indirect": True}
    instruction = record(
        "dma_scatter", DMA, (dst,), (src, index), accumulates=True, size=src, details=details
    )
    if current().values:
        at, inside = _rows_of(index, dst.shape[0], skip)
        values = computed(src) if add or src.dtype != dst.dtype else stored_bits(src)
        for p in np.flatnonzero(inside):
            row = dst[int(at[p]) : int(at[p]) + 1]
            value = values[p : p + 1].reshape(row.shape)
            stored(computed(row) + value if add else value, row)
    return instruction


def _rows_of(index: View, count: int, skip: bool) -> tuple[Array, Array]:
    """Returns the rows that an index names, and which of them exist.  Raises KernelError where one does not,
    unless these are skipped."""
    at = stored_bits(index).reshape(-1).astype(np.int64)
    inside = (at >= 0) & (at < count)
    if not skip and not inside.all():
        raise current().refuse("bounds", f"row {at[~inside][0]} is outside of the {count} rows")
    return np.where(inside, at, 0), inside


def rows(dst: View, *sources: View) -> dict[str, Any]:
    """Returns the bytes of a transfer and those of its rows, as details of its cost."""
    row = min(contiguous_bytes(v) for v in (dst, *sources))
    size = sum(s.size for s in sources) * max(v.dtype.itemsize for v in (dst, *sources))
    if len(sources) == 1:
        size = max(size, dst.size * dst.dtype.itemsize)
    return {"bytes": size, "row_bytes": row, "rows": -(-size // row) if row else 0}


def contiguous_bytes(view: View) -> int:
    """Returns the bytes that follow one another in memory; on chip a partition ends a row."""
    count = 1
    axes = list(zip(view.shape, view.steps, strict=True))
    for n, step in reversed(axes if view.space is Space.HBM else axes[1:]):
        if n != 1 and step != count:
            break
        count *= n
    return count * view.dtype.itemsize


def _chip(dst: View, src: View) -> View:
    """Returns the operand on chip, whose partitions and elements the record holds."""
    return src if src.space is not Space.HBM else dst


def _same_size(op: str, dst: View, *sources: View) -> None:
    for source in sources:
        if source.size != dst.size:
            raise current().refuse(
                "shape", f"{op}: src of shape {source.shape} does not fit into dst of shape {dst.shape}"
            )
