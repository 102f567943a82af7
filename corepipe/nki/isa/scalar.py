"""Instructions of ScalarE: activation functions with a scale, a bias and a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import (
    SCALAR,
    Operand,
    ReduceCommand,
    a_partition,
    accumulated,
    matched,
    record,
    spread,
    views_of,
)
from corepipe.nki.isa.operations import (
    BITS,
    REDUCTIONS,
    UNARY,
    VALID_RANGES,
    computed,
    operation,
    stored,
    stored_bits,
)

FUNCTIONS = {name: function for name, function in UNARY.items() if name not in BITS}


def activation(
    dst: View,
    op: Any,
    data: View,
    bias: Operand | None = None,
    scale: Operand = 1.0,
    reduce_op: Any = None,
    reduce_res: View | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    kind: str = "activation",
) -> Instruction:
    """Writes op(data * scale + bias), and reduces it into the registers of ScalarE as `reduce_cmd` says.

    reduce_res: [P, 1], to which the registers are read out.
    """
    function = operation(op, FUNCTIONS, place=f"{kind}: op")
    reduction = operation(reduce_op or "add", REDUCTIONS, place=f"{kind}: reduce_op")
    matched(kind, dst, data)
    a_partition(kind, "bias", bias, data)
    a_partition(kind, "scale", scale, data)
    reduces = reduce_res is not None or reduce_cmd is not ReduceCommand.idle
    operands = [n for n, o in (("bias", bias), ("scale", scale)) if isinstance(o, View)]
    instruction = record(
        kind,
        SCALAR,
        (dst, *views_of(reduce_res)),
        (data, *views_of(bias, scale)),
        size=data,
        details={"function": function, "reduce": reduces, "operands": operands},
    )
    values = None
    if current().values:
        values = _activated(function, data, scale, bias, dst)
        stored(values, dst)
    if reduces:
        accumulated(Engine.SCALAR, values, reduction, reduce_cmd, reduce_res)
    return instruction


def activation_reduce(
    dst: View,
    op: Any,
    data: View,
    reduce_op: Any,
    reduce_res: View | None,
    bias: Operand | None = None,
    scale: Operand = 1.0,
) -> Instruction:
    """Applies an activation function, and writes the reduction of each partition to reduce_res."""
    return activation(
        dst,
        op,
        data,
        bias=bias,
        scale=scale,
        reduce_op=reduce_op,
        reduce_res=reduce_res,
        reduce_cmd=ReduceCommand.reset_reduce,
        kind="activation_reduce",
    )


def _activated(function: str, data: View, scale: Operand, bias: Operand | None, dst: View) -> Array:
    plain = bias is None and not isinstance(scale, View) and scale == 1
    if function == "copy" and plain and data.dtype == dst.dtype:
        return stored_bits(data)
    x = computed(data)
    if isinstance(scale, View) or scale != 1:
        x = x * spread(scale, data.ndim)
    if bias is not None:
        x = x + spread(bias, data.ndim)
    if function in VALID_RANGES:
        _check_range(function, x)
    found: Array = UNARY[function](x)
    return found


def _check_range(function: str, x: Array) -> None:
    """Finds inputs for which ScalarE's approximation does not hold."""
    low, high = VALID_RANGES[function]
    out = (x < np.float32(low)) | (x > np.float32(high))
    if function == "sqrt":
        out &= x != 0
    if out.any():
        first = float(x[out].flat[0])
        current().find(
            "activation_range",
            f"{function} holds on [{low:.4g}, {high:.4g}] alone; its input was {first:.6g}",
        )
