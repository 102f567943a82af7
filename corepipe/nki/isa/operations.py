"""The functions that instructions apply, by name, and elements as the engines read and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa import functions
from corepipe.nki.rules.values import check_read

Function = Callable[..., Any]

ALIASES = {
    "absolute": "abs",
    "amax": "maximum",
    "amin": "minimum",
    "bitwise_not": "invert",
    "float_power": "power",
    "identity": "copy",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "prod": "multiply",
    "remainder": "mod",
    "sum": "add",
    "true_divide": "divide",
}
"""Names by which kernels give an operation besides its own: numpy's, and those of reductions."""


def _truth(function: Function) -> Function:
    """Returns a comparison that gives 1.0 and 0.0."""
    return lambda x, y: function(x, y).astype(np.float32)


def _shifted_right(x: Array, y: Any) -> Array:
    """Shifts zeros in from the left, for signed integers too."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    shifted: Array = np.right_shift(x.view(unsigned), np.asarray(y).astype(unsigned)).view(x.dtype)
    return shifted


BINARY: dict[str, Function] = {
    "abs_max": lambda x, y: np.maximum(np.abs(x), np.abs(y)),
    "abs_min": lambda x, y: np.minimum(np.abs(x), np.abs(y)),
    "add": np.add,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "divide": np.divide,
    "equal": _truth(np.equal),
    "fmod": np.fmod,
    "greater": _truth(np.greater),
    "greater_equal": _truth(np.greater_equal),
    "left_shift": np.left_shift,
    "less": _truth(np.less),
    "less_equal": _truth(np.less_equal),
    "logical_and": _truth(np.logical_and),
    "logical_or": _truth(np.logical_or),
    "logical_xor": _truth(np.logical_xor),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.mod,
    "multiply": np.multiply,
    "not_equal": _truth(np.not_equal),
    "power": np.power,
    "right_shift": _shifted_right,
    "subtract": np.subtract,
}

BITS = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"})
"""Operations on the bits of integers, which are not cast."""

WHOLE = frozenset({"add", "multiply", "subtract"})
"""Operations that are exact on 32-bit integers (on GpSimd, and for addresses)."""

REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "subtract": np.subtract,
}

COMPARISONS = {
    name: BINARY[name] for name in ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
}

UNARY: dict[str, Function] = {
    "abs": np.abs,
    "arctan": np.arctan,
    "ceil": np.ceil,
    "copy": lambda x: x,
    "cos": np.cos,
    "erf": functions.erf,
    "erf_dx": lambda x: np.float32(2 / np.sqrt(np.pi)) * np.exp(-x * x),
    "exp": np.exp,
    "floor": np.floor,
    "gelu": functions.gelu,
    "gelu_apprx_sigmoid": lambda x: x * functions.sigmoid(np.float32(1.702) * x),
    "gelu_apprx_sigmoid_dx": functions.gelu_apprx_sigmoid_dx,
    "gelu_apprx_tanh": functions.gelu_apprx_tanh,
    "gelu_dx": functions.gelu_dx,
    "invert": np.invert,
    "log": np.log,
    "logical_not": lambda x: (x == 0).astype(np.float32),
    "mish": lambda x: x * np.tanh(functions.softplus(x)),
    "negative": np.negative,
    "reciprocal": lambda x: np.float32(1) / x,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "sigmoid": functions.sigmoid,
    "sign": np.sign,
    "silu": lambda x: x * functions.sigmoid(x),
    "silu_dx": functions.silu_dx,
    "sin": np.sin,
    "softplus": functions.softplus,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}

VALID_RANGES = {
    "arctan": (-np.pi / 2, np.pi / 2),
    "log": (2.0**-64, 2.0**64),
    "rsqrt": (2.0**-87, 2.0**97),
    "sin": (-np.pi, np.pi),
    "sqrt": (2.0**-116, 2.0**118),
}
"""Inputs for which ScalarE's approximations hold (the table of activation functions in the API's reference);
zero is left out of sqrt's and rsqrt's as the edge that padding reaches."""


def name_of(op: Any) -> str:
    """Returns the name of an operation that a kernel gives as `nl.exp`, `np.exp` or a name.

    Raises TypeError where it is no operation.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    if name is None:
        raise TypeError(f"{op!r} is no operation")
    return ALIASES.get(name, name)


def operation(op: Any, *tables: Mapping[str, Any], place: str) -> str:
    """Returns the name of an operation of one of the tables; `place` says for what it was given.

    Raises KernelError where no table has it.
    """
    try:
        name = name_of(op)
    except TypeError:
        name = repr(op)
    if not any(name in table for table in tables):
        known = ", ".join(sorted({n for table in tables for n in table}))
        raise current().refuse("operation", f"{place}: {name} is not one of {known}")
    return name


def computed(view: View) -> Array:
    """Returns a view's elements as the engines read them, cast to fp32."""
    values = stored_bits(view)
    return values if values.dtype == np.float32 else values.astype(np.float32)


def stored_bits(view: View) -> Array:
    """Returns a view's elements as they are; elements that nothing has written are a finding."""
    check_read(current(), view)
    return view.array()


def cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """Returns values in another type: floats to nearest, ties to even; integers saturate, NaN becomes 0."""
    if values.dtype == dtype:
        return values
    if dtype.kind not in "iu":
        result: Array = (
            values != 0 if dtype.kind == "b" else values.astype(np.float32, copy=False).astype(dtype)
        )
        return result
    limits = np.iinfo(dtype)
    if values.dtype.kind in "iub":
        clipped = np.clip(values.astype(np.int64), limits.min, limits.max)
    else:
        clipped = np.nan_to_num(np.clip(np.rint(values.astype(np.float64)), limits.min, limits.max))
    return clipped.astype(dtype)


def stored(values: Array, view: View) -> None:
    """Writes a result into a view in its type and, where the shapes differ, in the order of its elements."""
    target = view.array()
    values = cast(values, target.dtype)
    target[...] = values.reshape(target.shape) if values.shape != target.shape else values
    if (flags := view.written()) is not None:
        flags[...] = True
