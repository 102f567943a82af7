"""Instructions of TensorE: products and transposes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corepipe.nki.core.buffers import Array, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import Recorder, current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import chosen, record
from corepipe.nki.isa.operations import computed, stored, stored_bits
from corepipe.nki.rules.breaking import broken, described, found

PRODUCTS = frozenset({"nc_matmul", "nc_transpose"})
"""Instructions of TensorE, which alone can begin a sum in PSUM."""

ONE_THREAD = 2**18
"""Multiplications up to which OpenBLAS uses one thread (65536 * GEMM_MULTITHREAD_THRESHOLD)."""

BLOCK = 32
"""Rows and columns of the largest tile that VectorE transposes."""


def nc_matmul(
    dst: View,
    stationary: View,
    moving: View,
    accumulate: bool | None = False,
    is_transpose: bool = False,
    onezero: bool = False,
    double_row: bool = False,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
) -> Instruction:
    """Multiplies stationary [K, M], transposed, by moving [K, N] into dst [M, N] in PSUM.

    accumulate: adds to what dst holds; None: adds to those of its elements that were written before.
    is_transpose: moving is an identity matrix, and the result keeps the stationary's values exactly.
    onezero: one operand holds ones and zeros alone, which saves a pass in fp32.  double_row: fp8 operands
    [K, 2, M] and [K, 2, N] hold two rows in each partition.  tile_position, tile_size: row and column of the
    array where the product runs, and the rows and columns that it takes.
    """
    recorder = current()
    rows = 2 if double_row else 1
    k, m, n = stationary.partitions, stationary.free // rows, moving.free // rows
    adds = _adds(recorder, dst, accumulate, is_transpose)
    instruction = record(
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
            "perf_mode": "double_row" if double_row else "",
            "tile_position": tuple(tile_position),
            "tile_size": tuple(tile_size),
        },
    )
    if recorder.values:
        product = _product(stationary, moving, rows, exact=is_transpose and recorder.generation != "v2")
        if adds:
            product = product.reshape(dst.shape) + _held(dst, accumulate and not recorder.legacy)
        stored(product, dst)
    return instruction


def _product(stationary: View, moving: View, rows: int, *, exact: bool) -> Array:
    """Returns the product in fp32; of a transpose `exact` is the stationary's own values, NaN and all."""
    k = stationary.partitions
    left = computed(stationary).reshape(k * rows, -1)
    right = computed(moving).reshape(k * rows, -1)
    if exact and right.shape == (k, k) and np.array_equal(right, np.eye(k, dtype=np.float32)):
        return left.T
    return multiplied(np.ascontiguousarray(left.T), right)


def multiplied(left: Array, right: Array) -> Array:
    """Returns left @ right in fp32, computed in parts so small that OpenBLAS uses one thread.

    Its threads wait for each other by spinning: beside other work a product of this size then takes ten to a
    hundred times as long.
    """
    (m, k), n = left.shape, right.shape[1]
    width = max(1, ONE_THREAD // (m * k))
    out = np.empty((m, n), np.float32)
    for start in range(0, n, width):
        np.matmul(left, right[:, start : start + width], out=out[:, start : start + width])
    return out


def _adds(recorder: Recorder, dst: View, accumulate: bool | None, is_transpose: bool) -> bool:
    """Tells whether a product adds to what its destination holds, which another product must have left."""
    if accumulate is False or (accumulate and recorder.legacy):
        return accumulate
    region = dst.region()
    writers = region.buffer.writers
    writer = writers.get(region.box) or next(
        (
            op
            for box, op in reversed(writers.items())
            if all(a < d and c < b for (a, b), (c, d) in zip(box, region.box, strict=True))
        ),
        None,
    )
    adds = writer is not None and not is_transpose if accumulate is None else accumulate
    if adds and writer not in PRODUCTS:
        found(recorder, "accumulation", operand=described(dst), writer=writer or "nothing")
    return adds


def _held(dst: View, whole: bool | None) -> Array:
    """Returns what a destination holds, or unless it is wanted whole, 0 where nothing was written: there the
    first product of a sum overwrites."""
    if whole:
        return computed(dst)
    held, written = dst.array().astype(np.float32), dst.written()
    return held if written is None else np.where(written, held, np.float32(0))


def nc_transpose(dst: View, data: View, engine: Engine | None = None) -> Instruction:
    """Transposes data [P, F] into dst [F, P]: TensorE into PSUM, or VectorE a tile of at most 32 x 32."""
    recorder = current()
    small = max(data.partitions, data.free) <= BLOCK
    engines = [Engine.TENSOR] * (dst.space is Space.PSUM) + [Engine.VECTOR] * small
    if not small and (engine is Engine.VECTOR or not engines):
        raise broken(
            recorder, "vector_transpose", "nc_transpose", data, found=f"{data.partitions} x {data.free}"
        )
    instruction = record(
        "nc_transpose",
        chosen("nc_transpose", engines, engine, (dst, data)),
        (dst,),
        (data,),
        size=data,
        details={"k": data.partitions, "m": data.free, "n": data.partitions, "is_transpose": True},
    )
    if recorder.values:
        stored(stored_bits(data).reshape(data.partitions, -1).T.copy(), dst)
    return instruction
