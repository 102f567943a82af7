"""Transfers between HBM, SBUF and PSUM's copies, which DMA queues carry out."""

from __future__ import annotations

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.operations import stored


def dma_copy(dst: View, src: View) -> Instruction:
    """Copies src to dst, cast to its type; a row is what is contiguous in both."""
    recorder = current()
    if recorder.values:
        stored(np.asarray(src.array()), dst)
    row = min(contiguous_bytes(dst), contiguous_bytes(src))
    size = src.size * max(src.dtype.itemsize, dst.dtype.itemsize)
    return recorder.emit(
        "dma_copy",
        (Engine.DMA,),
        (dst,),
        (src,),
        details={
            "bytes": size,
            "row_bytes": row,
            "rows": -(-size // row) if row else 0,
            "dtypes": (src.dtype.name, dst.dtype.name),
        },
    )


def contiguous_bytes(view: View) -> int:
    """Returns the bytes that follow one another in memory; on chip a partition ends a row."""
    count = 1
    axes = list(zip(view.shape, view.steps, strict=True))
    for n, step in reversed(axes if view.space is Space.HBM else axes[1:]):
        if n != 1 and step != count:
            break
        count *= n
    return count * view.dtype.itemsize
