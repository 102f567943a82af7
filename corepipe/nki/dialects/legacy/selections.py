"""`nki.isa` of the legacy dialect: instructions that make indices, select, describe, gather and move."""

from __future__ import annotations

from typing import Any

import numpy as np

from corepipe.nki.core.affine import IndexTile
from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.legacy.memory import scattered
from corepipe.nki.dialects.legacy.operands import (
    OobMode,
    Operands,
    ReduceName,
)
from corepipe.nki.dialects.legacy.results import Mask
from corepipe.nki.dialects.legacy.tiles import Rows, Tile, operand, pend, scalar_or_operand
from corepipe.nki.isa import partitions, select, statistics, transfers
from corepipe.nki.isa.base import ReduceCommand
from corepipe.nki.isa.operations import name_of


def iota(expr: Any, dtype: Any, *, mask: Any = None) -> Tile:
    """Returns the numbers of an index expression."""
    if isinstance(expr, int | np.integer):
        expr = IndexTile((1, 1), int(expr), (0, 0))
    if not isinstance(expr, IndexTile):
        raise current().refuse("operand", "iota takes an affine expression of arange")
    steps, lengths = expr.steps, expr.shape
    pattern = [[s, n] for s, n in zip(steps[1:], lengths[1:], strict=True)]
    return pend(
        lengths,
        dtype,
        lambda dst: select.iota(dst, pattern, offset=expr.base, channel_multiplier=steps[0]),
        mask=Mask.of(mask, lengths),
    )


def affine_select(
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None
) -> Tile:
    """Returns a tile where the predicate holds, and a number elsewhere."""
    given = Operands(on_true_tile, mask)
    where = np.broadcast_to(np.asarray(pred, np.bool_), given.whole.shape)
    if given.mask is not None and given.mask.exact is None:
        where = where[given.mask.box]
    number = scalar_or_operand(on_false_value)
    return given.result(dtype, lambda dst: select.affine_select(dst, where, given.data, number))


def range_select(
    *,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = ReduceName.idle,
    reduce_res: Any = None,
    reduce_op: Any = np.amax,
    range_start: int = 0,
    on_false_value: float = select.LOWEST,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Returns the elements whose index in the partition is within bounds, and a number elsewhere."""
    given = Operands(on_true_tile, mask)
    low, high = given.view(bound0), given.view(bound1)
    sums = None if reduce_res is None else given.view(reduce_res)
    command = ReduceCommand[ReduceName(reduce_cmd).name]
    return given.result(
        dtype,
        lambda dst: select.range_select(
            dst,
            given.data,
            comp_op0,
            comp_op1,
            low,
            high,
            reduce_cmd=command,
            reduce_res=sums,
            range_start=int(range_start),
            on_false_value=on_false_value,
        ),
    )


def select_reduce(
    *,
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = ReduceName.idle,
    reduce_op: Any = np.amax,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
) -> None:
    """Writes on_true to dst where the predicate holds, and on_false elsewhere."""
    given = Operands(dst, mask)
    where, first, second = given.view(predicate), given.view(on_true), given.number(on_false)
    sums = None if reduce_res is None else given.view(reduce_res)
    current().flush()
    select.select_reduce(
        given.data,
        where,
        first,
        second,
        reduce_res=sums,
        reduce_cmd=ReduceCommand[ReduceName(reduce_cmd).name],
        reverse_pred=reverse_pred,
    )


def bn_stats(data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Returns the statistics of each partition, [P, 6]."""
    return _of_partitions(data, mask, dtype, 6, statistics.bn_stats)


def bn_aggr(data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Returns mean and variance of each partition, [P, 2]."""
    return _of_partitions(data, mask, dtype, 2, statistics.bn_aggr)


def max8(*, src: Any, mask: Any = None, dtype: Any = None) -> Tile:
    """Returns the 8 largest elements of each partition."""
    return _of_partitions(src, mask, dtype, 8, statistics.max8)


def nc_find_index8(*, data: Any, vals: Any, mask: Any = None, dtype: Any = None) -> Tile:
    """Returns where 8 values stand in each partition."""
    values = operand(vals)
    kind = dtype if dtype is not None else np.uint32
    return _of_partitions(data, mask, kind, 8, lambda dst, view: statistics.nc_find_index8(dst, view, values))


def _of_partitions(data: Any, mask: Any, dtype: Any, count: int, run: Any) -> Tile:
    """Returns the result of an instruction that gives `count` numbers a partition."""
    given = Operands(data, mask)
    rows = None
    if given.mask is not None and given.mask.exact is None and given.mask.box[0] != slice(None):
        rows = Mask((given.mask.box[0], slice(None)), None)
    kind = dtype if dtype is not None else given.whole.dtype
    return pend((given.whole.shape[0], count), kind, lambda dst: run(dst, given.data), mask=rows)


def nc_match_replace8(
    *, data: Any, vals: Any, imm: Any, dst_idx: Any = None, mask: Any = None, dtype: Any = None
) -> Tile:
    """Returns data with each of 8 values replaced once."""
    given = Operands(data, mask)
    values = operand(vals)
    places = None if dst_idx is None else operand(dst_idx)
    return given.result(
        dtype,
        lambda dst: statistics.nc_match_replace8(dst, given.data, values, float(imm), dst_idx=places),
    )


def nc_stream_shuffle(src: Any, dst: Any, shuffle_mask: Any, *, dtype: Any = None, mask: Any = None) -> None:
    """Shuffles partitions within groups of 32."""
    source, target = operand(src), operand(dst)
    current().flush()
    partitions.nc_stream_shuffle(target, source, shuffle_mask)


def local_gather(
    src_buffer: Any, index: Any, num_elem_per_idx: int = 1, num_valid_indices: Any = None, *, mask: Any = None
) -> Tile:
    """Returns runs of elements, by indices that the 16 partitions of a GpSimd core share."""
    source, at = operand(src_buffer), operand(index)
    count = int(num_valid_indices or at.free * partitions.CORE)
    columns = -(-count // partitions.CORE)
    shape = (source.partitions, columns, partitions.CORE, int(num_elem_per_idx))
    if count % partitions.CORE:
        shape = (source.partitions, count, 1, int(num_elem_per_idx))
    return pend(
        shape,
        source.dtype,
        lambda dst: partitions.local_gather(dst, source, at, int(num_elem_per_idx), count),
    )


def sequence_bounds(*, segment_ids: Any, dtype: Any = None) -> Tile:
    """Returns where the segment of each element starts and ends, [1, 2, N]."""
    ids = operand(segment_ids)
    kind = dtype if dtype is not None else ids.dtype
    return pend((1, 2, ids.free), kind, lambda dst: partitions.sequence_bounds(dst, ids))


def dma_copy(
    *,
    dst: Any,
    src: Any,
    mask: Any = None,
    dst_rmw_op: Any = None,
    oob_mode: Any = None,
    dge_mode: Any = None,
) -> None:
    """Copies between HBM and SBUF."""
    if dst_rmw_op is not None and name_of(dst_rmw_op) != "add":
        raise current().refuse("unsupported", "dma_copy: dst_rmw_op is np.add or none")
    skip = oob_mode is not None and int(oob_mode) == OobMode.skip
    if isinstance(dst, Rows):
        scattered(dst, src.part, skip=skip, add=dst_rmw_op is not None)
        return
    source, target = src.part, dst.part
    current().flush()
    if isinstance(src, Rows):
        transfers.dma_gather(target, source, src.index, skip=skip, add=dst_rmw_op is not None)
        return
    part = Mask.of(mask, source.shape)
    target = target.fitted(source.shape)
    if part is not None:
        source, target = part.crop(source), part.part(target)
    transfers.dma_copy(target, source, add=dst_rmw_op is not None)


def dma_transpose(
    src: Any, *, axes: Any = None, mask: Any = None, dtype: Any = None, dge_mode: Any = None
) -> Tile:
    """Returns a tile with its first and last axes exchanged."""
    view = src.part
    order = transfers.TRANSPOSED.get(view.ndim, ())
    shape = tuple(view.shape[a] for a in order)
    kind = dtype if dtype is not None else view.dtype
    return pend(shape, kind, lambda dst: transfers.dma_transpose(dst, view, axes))
