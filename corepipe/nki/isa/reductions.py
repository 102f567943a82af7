"""Instructions that reduce or scan the free axes of a tile, or its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import (
    GPSIMD,
    VECTOR,
    Operand,
    ReduceCommand,
    a_partition,
    accumulated,
    matched,
    record,
    registers,
    spread,
    views_of,
)
from corepipe.nki.isa.operations import (
    BINARY,
    BITS,
    REDUCTIONS,
    UNARY,
    computed,
    operation,
    stored,
    stored_bits,
)


def tensor_reduce(
    dst: View, op: Any, data: View, axis: int | Sequence[int], negate: bool = False
) -> Instruction:
    """Reduces the last free axes of a tile; `negate` writes the result times -1."""
    name = operation(op, REDUCTIONS, place="tensor_reduce: op")
    axes = tuple(sorted(int(a) % data.ndim for a in np.atleast_1d(axis)))
    kept = data.shape[: axes[0]]
    details = {"op": name, "negate": negate, "axes": axes}
    instruction = record("tensor_reduce", VECTOR, (dst,), (data,), size=data, details=details)
    if dst.partitions != data.partitions or dst.size != int(np.prod(kept)):
        raise current().refuse(
            "shape",
            f"tensor_reduce: the reduction of {data.shape} over {axes} is {kept}, dst is {dst.shape}",
        )
    if current().values:
        values = stored_bits(data) if name in BITS else computed(data)
        found = REDUCTIONS[name].reduce(values, axis=axes)
        found = found if name in BITS else found.astype(np.float32)
        stored(-found if negate else found, dst)
    return instruction


def tensor_partition_reduce(dst: View, op: Any, data: View) -> Instruction:
    """Reduces a tile over its partitions into dst [1, N], on GpSimd."""
    average = getattr(op, "__name__", op) in ("average", "mean")
    name = "add" if average else operation(op, REDUCTIONS, place="tensor_partition_reduce: op")
    if dst.partitions != 1 or dst.free != data.free:
        raise current().refuse(
            "shape", f"tensor_partition_reduce: dst of shape {dst.shape} is not [1, {data.free}]"
        )
    instruction = record("tensor_partition_reduce", GPSIMD, (dst,), (data,), size=data, details={"op": name})
    if current().values:
        values = stored_bits(data) if name in BITS else computed(data)
        found = REDUCTIONS[name].reduce(values, axis=0)
        stored(found / np.float32(data.partitions) if average else found, dst)
    return instruction


def tensor_scalar_reduce(
    dst: View,
    data: View,
    op0: Any,
    operand0: Operand | None,
    reduce_op: Any,
    reduce_res: View | None = None,
    reverse0: bool = False,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_init: Operand | None = None,
    reduce_res_negate: bool = False,
) -> Instruction:
    """Writes data op0 operand0, and its reduction in each partition to reduce_res [P, 1]."""
    name = operation(op0, BINARY, UNARY, place="tensor_scalar_reduce: op0")
    reduction = operation(reduce_op, REDUCTIONS, place="tensor_scalar_reduce: reduce_op")
    matched("tensor_scalar_reduce", dst, data)
    a_partition("tensor_scalar_reduce", "operand0", operand0, data)
    instruction = record(
        "tensor_scalar_reduce",
        VECTOR,
        (dst, *views_of(reduce_res)),
        (data, *views_of(operand0, reduce_init)),
        size=data,
        details={"op0": name, "op": reduction, "reduce": True},
    )
    values = None
    if current().values:
        values = _applied(name, computed(data), operand0, reverse0)
        stored(values, dst)
    accumulated(
        Engine.VECTOR,
        values,
        reduction,
        reduce_cmd,
        reduce_res,
        initial=reduce_init,
        negate=reduce_res_negate,
    )
    return instruction


def _applied(name: str, x: Array, operand: Operand | None, reverse: bool) -> Array:
    """Returns x op operand, in fp32."""
    if name in UNARY or operand is None:
        found: Array = UNARY[name](x)
    else:
        y = spread(operand, x.ndim)
        found = BINARY[name](y, x) if reverse else BINARY[name](x, y)
    return found


def tensor_tensor_scan(
    dst: View,
    data0: View,
    data1: View,
    initial: Operand,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Instruction:
    """Writes r[i] = (data0[i] op0 r[i - 1]) op1 data1[i] along each partition, where r[-1] is `initial`."""
    first = operation(op0, BINARY, place="tensor_tensor_scan: op0")
    second = operation(op1, BINARY, place="tensor_tensor_scan: op1")
    matched("tensor_tensor_scan", dst, data0, data1)
    a_partition("tensor_tensor_scan", "initial", initial, data0)
    instruction = record(
        "tensor_tensor_scan",
        VECTOR,
        (dst,),
        (data0, data1, *views_of(initial)),
        size=data0,
        details={"op0": first, "op1": second},
    )
    if current().values:
        a, b = _columns(data0), _columns(data1)
        stored(_scanned(a, b, spread(initial, 1), first, second, reverse0, reverse1).T, dst)
    return instruction


def _columns(view: View) -> Array:
    """Returns a tile with its free axes first, so that a position of all partitions is contiguous."""
    return np.ascontiguousarray(computed(view).reshape(view.partitions, -1).T)


def _scanned(a: Array, b: Array, state: Any, first: str, second: str, flip0: bool, flip1: bool) -> Array:
    f, g = BINARY[first], BINARY[second]
    out = np.empty_like(a)
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        state = f(state, x) if flip0 else f(x, state)
        state = g(y, state) if flip1 else g(state, y)
        out[i] = state
    return out


def tensor_scalar_cumulative(
    dst: View,
    src: View,
    op0: Any,
    op1: Any,
    imm0: Operand,
    imm1: Operand | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
) -> Instruction:
    """Writes the running reduction by op1 of src op0 imm0 along each partition."""
    first = operation(op0, BINARY, place="tensor_scalar_cumulative: op0")
    second = operation(op1, REDUCTIONS, place="tensor_scalar_cumulative: op1")
    matched("tensor_scalar_cumulative", dst, src)
    a_partition("tensor_scalar_cumulative", "imm0", imm0, src)
    instruction = record(
        "tensor_scalar_cumulative",
        VECTOR,
        (dst,),
        (src, *views_of(imm0, imm1)),
        size=src,
        details={"op0": first, "op1": second},
    )
    if current().values:
        values = _applied(first, computed(src), imm0, False)
        held = registers(Engine.VECTOR, second, reduce_cmd, imm1)[: len(values)]
        states = np.concatenate([held[:, None], values.reshape(len(values), -1)], axis=1)
        running = REDUCTIONS[second].accumulate(states, axis=1)[:, 1:]
        held[:] = running[:, -1]
        stored(running, dst)
    return instruction
