"""Checks of products and transposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View
from corepipe.nki.rules.breaking import Details, Engines, Views, broken, holds
from corepipe.nki.rules.table import RULES

BANK = RULES["matmul_bank"].limits
COLUMNS = RULES["matmul_columns"].limits
ARRAY = RULES["matmul_rows"].limits["v2"]
VECTOR_BLOCK = RULES["vector_transpose"].limits["v2"]
TILE = RULES["tile_position"].limits["v2"]


def _matmul(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    dst, stationary, moving = writes[0], reads[0], reads[1]
    _memories(recorder, op, dst, (stationary, moving))
    doubled = bool(details.get("perf_mode"))
    if doubled:
        _double_row(recorder, op, stationary, moving)
    k, m, n = stationary.shape[0], _free(stationary), _free(moving)
    if doubled:
        m, n = m // 2, n // 2
    rows, columns = _tile(recorder, op, details) if details.get("tile_size") else (ARRAY, ARRAY)
    if k != moving.shape[0] or k > rows:
        raise broken(recorder, "matmul_contraction", op, found=k, other=moving.shape[0], limit=rows)
    if m > columns:
        raise broken(recorder, "matmul_rows", op, stationary, found=m, limit=columns)
    limit = COLUMNS[recorder.generation]
    if n > limit and (recorder.generation != "v4" or n > (limit := limit * 4 // dst.dtype.itemsize)):
        raise broken(recorder, "matmul_columns", op, moving, found=n, limit=limit)
    if dst.shape != (m, n) and (dst.shape[0] != m or dst.free != n):
        raise broken(
            recorder, "matmul_shape", op, dst, found=f"{dst.shape[0]} x {dst.free}", other=f"{m} x {n}"
        )
    _bank(recorder, op, dst)
    if not recorder.legacy:
        _types(recorder, op, dst, stationary, moving, keeps=bool(details.get("is_transpose")))


def _free(view: View) -> int:
    return view.shape[1] if len(view.shape) == 2 else view.free


def _memories(recorder: Recorder, op: str, dst: View, sources: Sequence[View]) -> None:
    """Checks that TensorE reads SBUF and writes PSUM."""
    for view in sources:
        if view.buffer.space is not Space.SBUF:
            raise broken(recorder, "matmul_operands", op, view)
    if dst.buffer.space is not Space.PSUM:
        raise broken(recorder, "matmul_result", op, dst)


def _double_row(recorder: Recorder, op: str, stationary: View, moving: View) -> None:
    for view in (stationary, moving):
        pairs = view.ndim > 2 and view.shape[1] == 2
        if recorder.generation == "v2" or not pairs or not view.dtype.name.startswith("float8"):
            found = f"{view.dtype.name} of shape {list(view.shape)}"
            raise broken(recorder, "double_row", op, view, found=found)


def _tile(recorder: Recorder, op: str, details: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the rows and columns of the array that a product may use."""
    size, at = tuple(details["tile_size"]), tuple(details.get("tile_position") or (0, 0))
    legal = all(
        s in {TILE, 2 * TILE, 4 * TILE} and p % s == 0 and p + s <= ARRAY
        for s, p in zip(size, at, strict=True)
    )
    if not legal or (recorder.generation == "v2" and size == (TILE, TILE)):
        raise broken(recorder, "tile_position", op, found=at, size=size)
    return size[0], size[1]


def _bank(recorder: Recorder, op: str, dst: View) -> None:
    """Checks that a result is in one bank; a tensor without an address begins at a bank."""
    limit = BANK.get(recorder.generation)
    root = dst.buffer.root
    if limit is None:
        return
    width = prod(root.shape[root.blocks + 1 :])
    size = root.dtype.itemsize
    if width * size <= limit and root.address is None:
        return
    first = dst.offset % width * size + (root.address or 0)
    last = (
        first + sum(s * (n - 1) for s, n in zip(dst.steps[1:], dst.shape[1:], strict=True)) * size + size - 1
    )
    if first // limit != last // limit:
        raise broken(recorder, "matmul_bank", op, dst, first=first, last=last)


def _types(recorder: Recorder, op: str, dst: View, stationary: View, moving: View, *, keeps: bool) -> None:
    """Checks the types of a product; from v3 on one that transposes keeps the type of its operand."""
    a, b, c = stationary.buffer.dtype, moving.buffer.dtype, dst.buffer.dtype
    if a is not b and (a.name == "float32") != (b.name == "float32"):
        raise broken(recorder, "matmul_types", op, found=a.name, other=b.name)
    if keeps and c is a and recorder.generation != "v2":
        return
    if c.name != "float32" and (recorder.generation != "v4" or c.name != "bfloat16"):
        raise broken(recorder, "matmul_result_type", op, found=c.name)


def _transpose(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    dst, data = writes[0], reads[0]
    rows, columns = data.partitions, data.free
    engine = engines[0]
    if engine is Engine.TENSOR:
        if rows > ARRAY or columns > ARRAY:
            raise broken(recorder, "tensor_transpose", op, data, found=f"{rows} x {columns}")
        _memories(recorder, op, dst, (data,))
    elif rows > VECTOR_BLOCK or columns > VECTOR_BLOCK:
        raise broken(recorder, "vector_transpose", op, data, found=f"{rows} x {columns}")
    if dst.partitions != columns or dst.free != rows:
        found, other = f"{dst.partitions} x {dst.free}", f"{columns} x {rows}"
        raise broken(recorder, "matmul_shape", op, dst, found=found, other=other)
    if dst.dtype != data.dtype and holds(recorder, "transpose_type"):
        raise broken(recorder, "transpose_type", op, found=dst.dtype.name, other=data.dtype.name)


def _dma_transpose(
    recorder: Recorder, op: str, writes: Views, reads: Views, details: Details, engines: Engines
) -> None:
    size = reads[0].dtype.itemsize
    hardware = details.get("dge_mode") == "hwdge"
    if hardware and size != RULES["dma_transpose"].limits["v2"] and holds(recorder, "dma_transpose"):
        raise broken(recorder, "dma_transpose", op, reads[0], found=size)


PRODUCT_CHECKS = {"nc_matmul": _matmul, "nc_transpose": _transpose, "dma_transpose": _dma_transpose}
"""Checks by the name of the instruction."""
