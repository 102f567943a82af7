"""Elementwise instructions of VectorE, and of ScalarE and GpSimd where these can run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import (
    VECTOR,
    Operand,
    a_partition,
    chosen,
    matched,
    record,
    spread,
    spread_bits,
    views_of,
)
from corepipe.nki.isa.operations import (
    BINARY,
    BITS,
    UNARY,
    WHOLE,
    computed,
    operation,
    stored,
    stored_bits,
)

ANY = (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)

ON_SCALAR = {("multiply", "add"), ("multiply", None), ("add", None)}
"""Pairs of operations of `tensor_scalar` that ScalarE runs."""


def tensor_copy(dst: View, src: View, engine: Engine | None = None) -> Instruction:
    """Copies src to dst: bit by bit, or through fp32 where the types differ."""
    matched("tensor_copy", dst, src)
    instruction = record(
        "tensor_copy", chosen("tensor_copy", ANY, engine, (dst, src)), (dst,), (src,), size=dst
    )
    if current().values:
        stored(stored_bits(src) if src.dtype == dst.dtype else computed(src), dst)
    return instruction


def memset(dst: View, value: float, engine: Engine | None = None) -> Instruction:
    """Fills dst with a number."""
    engines = chosen("memset", (Engine.VECTOR, Engine.GPSIMD), engine, (dst,))
    instruction = record("memset", engines, (dst,), (), size=dst, details={"zero": value == 0})
    if current().values:
        stored(np.full(dst.shape, value), dst)
    return instruction


def reciprocal(dst: View, data: View) -> Instruction:
    """Writes 1 / data."""
    matched("reciprocal", dst, data)
    instruction = record("reciprocal", VECTOR, (dst,), (data,), size=data)
    if current().values:
        stored(np.float32(1) / computed(data), dst)
    return instruction


def tensor_tensor(dst: View, data1: View, data2: View, op: Any, engine: Engine | None = None) -> Instruction:
    """Applies a binary operation to two tiles in fp32, on the bits of integers, or exactly: GpSimd computes
    with 32-bit integers."""
    name = operation(op, BINARY, place="tensor_tensor: op")
    matched("tensor_tensor", dst, data1, data2)
    whole = name in WHOLE and _whole(dst, data1, data2) and engine is not Engine.VECTOR
    whole = whole and all(v.space is not Space.PSUM for v in (dst, data1, data2))
    if name == "power" or whole:
        engines: Sequence[Engine] = (Engine.GPSIMD,)
        engine = None if engine is Engine.GPSIMD else engine
    else:
        engines = (Engine.VECTOR, Engine.GPSIMD)
    instruction = record(
        "tensor_tensor",
        chosen("tensor_tensor", engines, engine, (dst, data1, data2)),
        (dst,),
        (data1, data2),
        size=dst,
        details={"op": name},
    )
    if current().values:
        read = stored_bits if whole or name in BITS else computed
        a, b = read(data1), read(data2)
        stored(BINARY[name](a, b.reshape(a.shape)), dst)
    return instruction


def tensor_scalar(
    dst: View,
    data: View,
    op0: Any,
    operand0: Operand | None,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Operand | None = None,
    reverse1: bool = False,
    engine: Engine | None = None,
) -> Instruction:
    """Writes (data op0 operand0) op1 operand1; an operand is a number or [P, 1], and comes first where it is
    reversed."""
    steps = [(_scalar_op("tensor_scalar", op0), operand0, reverse0)]
    if op1 is not None:
        steps.append((_scalar_op("tensor_scalar", op1), operand1, reverse1))
    matched("tensor_scalar", dst, data)
    for number, (name, operand, _) in enumerate(steps):
        if operand is None and name not in UNARY:
            raise current().refuse("operand", f"tensor_scalar: op{number}={name} needs operand{number}")
        a_partition("tensor_scalar", f"operand{number}", operand, data)
    names = (steps[0][0], steps[1][0] if op1 is not None else None)
    engines = [e for e in ANY if e is not Engine.SCALAR or names in ON_SCALAR]
    instruction = record(
        "tensor_scalar",
        chosen("tensor_scalar", engines, engine, (dst, data)),
        (dst,),
        (data, *views_of(*(operand for _, operand, _ in steps))),
        size=dst,
        details={"op0": names[0], "op1": names[1]},
    )
    if current().values:
        stored(_scaled(dst, data, steps), dst)
    return instruction


def _scalar_op(place: str, op: Any) -> str:
    return operation(op, BINARY, UNARY, place=f"{place}: op")


def _scaled(dst: View, data: View, steps: Sequence[tuple[str, Operand | None, bool]]) -> Array:
    """Returns the result of `tensor_scalar`: on bits, exactly on 32-bit integers, or in fp32."""
    operands = views_of(*(operand for _, operand, _ in steps))
    bits = sum(name in BITS for name, _, _ in steps)
    if bits not in (0, len(steps)):
        raise current().refuse("operation", "tensor_scalar: operations on bits and arithmetic do not mix")
    if bits and data.dtype.kind not in "iu":
        raise current().refuse("dtype", f"tensor_scalar: operations on bits need integers, not {data.dtype}")
    numbers = all(isinstance(o, View | int | np.integer) for _, o, _ in steps)
    whole = bits or (numbers and all(n in WHOLE for n, _, _ in steps) and _whole(dst, data, *operands))
    x = stored_bits(data) if whole else computed(data)
    for name, operand, reverse in steps:
        if name in UNARY:
            x = UNARY[name](x)
            continue
        assert operand is not None
        y = spread_bits(operand, data.ndim, data.dtype) if whole else spread(operand, data.ndim)
        x = BINARY[name](y, x) if reverse else BINARY[name](x, y)
    return x


def _whole(*views: View) -> bool:
    """Tells whether all are 32-bit integers."""
    return all(v.dtype.kind in "iu" and v.dtype.itemsize == 4 for v in views)


def scalar_tensor_tensor(
    dst: View,
    data: View,
    op0: Any,
    operand0: Operand,
    op1: Any,
    operand1: View,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Instruction:
    """Writes (data op0 operand0) op1 operand1, where operand0 is a number or [P, 1] and operand1 a tile."""
    first = operation(op0, BINARY, UNARY, place="scalar_tensor_tensor: op0")
    second = operation(op1, BINARY, place="scalar_tensor_tensor: op1")
    matched("scalar_tensor_tensor", dst, data, operand1)
    a_partition("scalar_tensor_tensor", "operand0", operand0, data)
    instruction = record(
        "scalar_tensor_tensor",
        VECTOR,
        (dst,),
        (data, operand1, *views_of(operand0)),
        size=dst,
        details={"op0": first, "op1": second},
    )
    if current().values:
        x = computed(data)
        if first in UNARY:
            x = UNARY[first](x)
        else:
            y = spread(operand0, data.ndim)
            x = BINARY[first](y, x) if reverse0 else BINARY[first](x, y)
        z = computed(operand1).reshape(x.shape)
        stored(BINARY[second](z, x) if reverse1 else BINARY[second](x, z), dst)
    return instruction
