"""Instructions of TensorE: products and transposes."""

from __future__ import annotations

import numpy as np

from corepipe.nki.core.buffers import Array, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import Recorder, current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import chosen, record
from corepipe.nki.isa.operations import computed, stored, stored_bits

BLOCK = 32
"""Rows and columns of the largest tile that VectorE transposes."""


def nc_matmul(
    dst: View,
    stationary: View,
    moving: View,
    *,
    accumulate: bool | None = False,
    is_transpose: bool = False,
    onezero: bool = False,
    double_row: bool = False,
) -> Instruction:
    """Multiplies stationary [K, M], transposed, by moving [K, N] into dst [M, N] in PSUM.

    accumulate: adds to what dst holds; None: adds to those of its elements that were written before.
    is_transpose: moving is an identity matrix, and the result keeps the stationary's values exactly.
    onezero: one operand holds ones and zeros alone, which saves a pass in fp32.  double_row: fp8 operands
    [K, 2, M] and [K, 2, N] hold two rows in each partition.
    """
    recorder = current()
    rows = 2 if double_row else 1
    k, m, n = stationary.partitions, stationary.free // rows, moving.free // rows
    if moving.partitions != k or (dst.partitions, dst.free) != (m, n):
        raise recorder.refuse(
            "shape",
            f"nc_matmul: stationary {stationary.shape} and moving {moving.shape} give [{m}, {n}], "
            f"but dst has the shape {dst.shape}",
        )
    adds = _adds(recorder, dst, accumulate, is_transpose)
    if recorder.values:
        product = _product(stationary, moving, rows, exact=is_transpose and recorder.generation != "v2")
        stored(product.reshape(dst.shape) + _held(dst, accumulate) if adds else product, dst)
    return record(
        "nc_matmul",
        (Engine.TENSOR,),
        (dst,),
        (stationary, moving),
        accumulates=adds,
        size=moving,
        details={
            "k": k * rows,
            "m": m,
            "n": n,
            "is_transpose": is_transpose,
            "onezero": onezero,
            "double_row": double_row,
        },
    )


def _product(stationary: View, moving: View, rows: int, *, exact: bool) -> Array:
    """Returns the product in fp32; of a transpose `exact` is the stationary's own values, NaN and all."""
    k = stationary.partitions
    left = computed(stationary).reshape(k * rows, -1)
    right = computed(moving).reshape(k * rows, -1)
    if exact and right.shape == (k, k) and np.array_equal(right, np.eye(k, dtype=np.float32)):
        return left.T
    product: Array = left.T @ right
    return product


def _adds(recorder: Recorder, dst: View, accumulate: bool | None, is_transpose: bool) -> bool:
    """Tells whether a product adds to what its destination holds; a sum on memset PSUM is a finding."""
    region = dst.region()
    writer = next(
        (
            op
            for box, op in reversed(region.buffer.writers.items())
            if all(a < d and c < b for (a, b), (c, d) in zip(box, region.box, strict=True))
        ),
        None,
    )
    adds = writer is not None and not is_transpose if accumulate is None else accumulate
    if adds and writer == "memset" and not recorder.legacy and recorder.generation in ("v2", "v3"):
        recorder.find(
            "accumulate-on-memset",
            f"the product adds to PSUM that memset wrote, which is undefined on {recorder.generation}: "
            "let the first product overwrite it (accumulate=False)",
        )
    return adds


def _held(dst: View, accumulate: bool | None) -> Array:
    """Returns what a destination holds, 0 where a first write overwrites."""
    if accumulate:
        return computed(dst)
    held, written = dst.array().astype(np.float32), dst.written()
    return held if written is None else np.where(written, held, np.float32(0))


def nc_transpose(dst: View, data: View, *, engine: Engine | None = None) -> Instruction:
    """Transposes data [P, F] into dst [F, P]: TensorE into PSUM, or VectorE a tile of at most 32 x 32."""
    recorder = current()
    if (dst.partitions, dst.free) != (data.free, data.partitions):
        raise recorder.refuse(
            "shape", f"nc_transpose: data of shape {data.shape} does not fit into dst of shape {dst.shape}"
        )
    small = max(data.partitions, data.free) <= BLOCK
    engines = [Engine.TENSOR] * (dst.space is Space.PSUM) + [Engine.VECTOR] * small
    if not engines:
        raise recorder.refuse(
            "transpose",
            f"nc_transpose: a tile of shape {data.shape} is transposed by TensorE, which writes to PSUM; "
            f"VectorE transposes at most {BLOCK} x {BLOCK}",
        )
    if recorder.values:
        stored(stored_bits(data).reshape(data.partitions, -1).T.copy(), dst)
    return record(
        "nc_transpose",
        chosen("nc_transpose", engines, engine, (dst, data)),
        (dst,),
        (data,),
        size=data,
        details={"k": data.partitions, "m": data.free, "n": data.partitions, "is_transpose": True},
    )
