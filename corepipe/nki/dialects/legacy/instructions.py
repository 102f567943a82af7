"""`nki.isa` of the legacy dialect: the instructions, with their results returned."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from corepipe.nki.core.affine import IndexTile
from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy import elementwise, products, reductions
from corepipe.nki.dialects.legacy.memory import scattered
from corepipe.nki.dialects.legacy.results import Mask
from corepipe.nki.dialects.legacy.tiles import Rows, Tile, operand, pend, scalar_or_operand
from corepipe.nki.dialects.legacy.types import wider
from corepipe.nki.isa import partitions, scalar, select, statistics, transfers, vector
from corepipe.nki.isa import reductions as reducing
from corepipe.nki.isa.base import ReduceCommand
from corepipe.nki.isa.operations import name_of
from corepipe.nki.rules.breaking import broken


class EngineName(IntEnum):
    """The engines by the numbers that kernels see."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    vector = 5
    sync = 6


class ReduceName(IntEnum):
    """Commands to the registers of an engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3


def engine_of(name: Any) -> Engine | None:
    """Returns the engine that a kernel names; None leaves the choice to the compiler."""
    if name is None or int(name) == EngineName.unknown:
        return None
    return Engine(EngineName(int(name)).name)


class _Operands:
    """The operands of one instruction: cropped by its mask, numbers as they are."""

    def __init__(self, data: Any, mask: Any) -> None:
        self.whole = operand(data)
        self.mask = Mask.of(mask, self.whole.shape)
        self.data = self.whole if self.mask is None else operand(data, self.mask)

    def view(self, value: Any) -> View:
        """Returns another tile of the same shape, or with axes of length 1."""
        return operand(value, self.mask)

    def number(self, value: Any) -> Any:
        """Returns a number, or a view of one number a partition."""
        if isinstance(value, Tile) and value.ndim < self.whole.ndim and self.mask is not None:
            return scalar_or_operand(value.reshape(value.shape[0], *(1,) * (self.whole.ndim - 1)), self.mask)
        return scalar_or_operand(value, self.mask)

    def result(self, dtype: Any, run: Any) -> Tile:
        kind = dtype if dtype is not None else self.whole.dtype
        return pend(self.whole.shape, kind, run, mask=self.mask)


def nc_matmul(
    stationary: Any,
    moving: Any,
    *,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    mask: Any = None,
    perf_mode: Any = None,
) -> Tile:
    """Returns stationary [K, M], transposed, times moving [K, N]; with two rows a partition, [K, 2, ...]."""
    return products.product(
        operand(stationary),
        operand(moving),
        mask=mask,
        is_transpose=is_transpose,
        onezero=is_stationary_onezero or is_moving_onezero,
        double_row=perf_mode is not None and str(perf_mode).startswith("double_row"),
        tile_position=tile_position,
        tile_size=tile_size,
    )


def nc_transpose(data: Any, *, mask: Any = None, dtype: Any = None, engine: Any = None) -> Tile:
    """Transposes a tile."""
    return products.nc_transpose(data, mask=mask, dtype=dtype, engine=engine_of(engine))


def activation(
    op: Any,
    data: Any,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = ReduceName.idle,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Returns op(data * scale + bias)."""
    given = _Operands(data, mask)
    shift = None if bias is None else given.number(bias)
    factor = given.number(scale)
    sums = None if reduce_res is None else operand(reduce_res)
    command = ReduceCommand[ReduceName(reduce_cmd).name]
    return given.result(
        dtype,
        lambda dst: scalar.activation(
            dst,
            op,
            given.data,
            bias=shift,
            scale=factor,
            reduce_op=reduce_op,
            reduce_res=sums,
            reduce_cmd=command,
        ),
    )


def activation_reduce(
    op: Any,
    data: Any,
    *,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
) -> Tile:
    """Returns op(data * scale + bias), and writes its reduction to reduce_res."""
    given = _Operands(data, mask)
    shift = None if bias is None else given.number(bias)
    factor, sums = given.number(scale), given.view(reduce_res)
    return given.result(
        dtype,
        lambda dst: scalar.activation_reduce(
            dst, op, given.data, reduce_op=reduce_op, reduce_res=sums, bias=shift, scale=factor
        ),
    )


def tensor_tensor(
    data1: Any, data2: Any, op: Any, *, dtype: Any = None, mask: Any = None, engine: Any = None
) -> Tile:
    """Returns data1 op data2."""
    if operand(data1).space is Space.PSUM and operand(data2).space is Space.PSUM:
        raise broken(current(), "both_in_psum", "tensor_tensor")
    return elementwise.two_tiles(op, data1, data2, dtype, mask, engine_of(engine))


def tensor_scalar(
    data: Any,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = None,
) -> Tile:
    """Returns (data op0 operand0) op1 operand1."""
    given = _Operands(data, mask)
    first = None if operand0 is None else given.number(operand0)
    second = None if operand1 is None else given.number(operand1)
    chosen = engine_of(engine)
    return given.result(
        dtype,
        lambda dst: vector.tensor_scalar(
            dst,
            given.data,
            op0,
            first,
            reverse0=reverse0,
            op1=op1,
            operand1=second,
            reverse1=reverse1,
            engine=chosen,
        ),
    )


def tensor_scalar_reduce(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Returns data op0 operand0, and writes its reduction to reduce_res."""
    given = _Operands(data, mask)
    first, sums = given.number(operand0), given.view(reduce_res)
    return given.result(
        dtype,
        lambda dst: reducing.tensor_scalar_reduce(
            dst, given.data, op0, first, reduce_op=reduce_op, reduce_res=sums, reverse0=reverse0
        ),
    )


def scalar_tensor_tensor(
    *,
    data: Any,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Returns (data op0 operand0) op1 operand1, where operand1 is a tile."""
    given = _Operands(data, mask)
    first, second = given.number(operand0), given.view(operand1)
    return given.result(
        dtype,
        lambda dst: vector.scalar_tensor_tensor(
            dst, given.data, op0, first, op1, second, reverse0=reverse0, reverse1=reverse1
        ),
    )


def tensor_tensor_scan(
    data0: Any,
    data1: Any,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
) -> Tile:
    """Returns r with r[i] = (data0[i] op0 r[i - 1]) op1 data1[i]."""
    given = _Operands(data0, mask)
    other, start = given.view(data1), given.number(initial)
    return given.result(
        dtype if dtype is not None else wider(given.whole.dtype, data1.dtype),
        lambda dst: reducing.tensor_tensor_scan(
            dst, given.data, other, start, op0, op1, reverse0=reverse0, reverse1=reverse1
        ),
    )


def tensor_reduce(
    op: Any,
    data: Any,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
) -> Tile:
    """Returns the reduction of free axes."""
    return reductions.reduced(op, data, axis, mask=mask, dtype=dtype, negate=negate, keepdims=keepdims)


def tensor_partition_reduce(op: Any, data: Any, *, mask: Any = None, dtype: Any = None) -> Tile:
    """Returns the reduction over partitions, [1, N]."""
    given = _Operands(data, mask)
    kind = dtype if dtype is not None else given.whole.dtype
    shape = (1, *given.data.shape[1:])
    return pend(shape, kind, lambda dst: reducing.tensor_partition_reduce(dst, op, given.data))


def tensor_copy(src: Any, *, mask: Any = None, dtype: Any = None, engine: Any = None) -> Tile:
    """Returns a copy."""
    return elementwise.copy(src, mask=mask, dtype=dtype, engine=engine_of(engine))


def tensor_copy_predicated(
    *,
    src: Any,
    dst: Any,
    predicate: Any,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
) -> None:
    """Copies elements of src to dst where the predicate holds."""
    given = _Operands(dst, mask)
    source, where = given.number(src), given.view(predicate)
    current().flush()
    select.tensor_copy_predicated(given.data, source, where, reverse_pred=reverse_pred)


def reciprocal(data: Any, *, dtype: Any = None, mask: Any = None) -> Tile:
    """Returns 1 / data."""
    return elementwise.reciprocal(data, dtype=dtype, mask=mask)


def memset(shape: Any, value: Any, dtype: Any, *, mask: Any = None, engine: Any = None) -> Tile:
    """Returns a tile filled with a number."""
    lengths = tuple(int(n) for n in shape)
    chosen = engine_of(engine)
    number = scalar_or_operand(value)
    return pend(
        lengths, dtype, lambda dst: vector.memset(dst, number, engine=chosen), mask=Mask.of(mask, lengths)
    )


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
    given = _Operands(on_true_tile, mask)
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
    given = _Operands(on_true_tile, mask)
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
    given = _Operands(dst, mask)
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
    given = _Operands(data, mask)
    rows = None
    if given.mask is not None and given.mask.exact is None and given.mask.box[0] != slice(None):
        rows = Mask((given.mask.box[0], slice(None)), None)
    kind = dtype if dtype is not None else given.whole.dtype
    return pend((given.whole.shape[0], count), kind, lambda dst: run(dst, given.data), mask=rows)


def nc_match_replace8(
    *, data: Any, vals: Any, imm: Any, dst_idx: Any = None, mask: Any = None, dtype: Any = None
) -> Tile:
    """Returns data with each of 8 values replaced once."""
    given = _Operands(data, mask)
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


def get_nc_version() -> Any:
    """Returns the generation of the core."""
    return NcVersion(int(current().generation[1:]))


class NcVersion(IntEnum):
    """Generations of NeuronCores."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class DgeMode(IntEnum):
    """Ways to make the descriptors of a transfer."""

    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3


class OobMode(IntEnum):
    """Effects of an index outside of its tensor."""

    error = 0
    skip = 1
