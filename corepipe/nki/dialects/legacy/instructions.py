"""`nki.isa` of the legacy dialect: instructions that compute, with their results returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.legacy import elementwise, products, reductions
from corepipe.nki.dialects.legacy.operands import (
    Operands,
    ReduceName,
    engine_of,
)
from corepipe.nki.dialects.legacy.results import Mask
from corepipe.nki.dialects.legacy.tiles import Tile, operand, pend, scalar_or_operand
from corepipe.nki.dialects.legacy.types import wider
from corepipe.nki.isa import reductions as reducing
from corepipe.nki.isa import scalar, select, vector
from corepipe.nki.isa.base import ReduceCommand
from corepipe.nki.rules.breaking import broken


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
    given = Operands(data, mask)
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
    given = Operands(data, mask)
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
    given = Operands(data, mask)
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
    given = Operands(data, mask)
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
    given = Operands(data, mask)
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
    given = Operands(data0, mask)
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
    given = Operands(data, mask)
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
    given = Operands(dst, mask)
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
