"""The functions that instructions apply, by name: numpy on fp32, as the engines compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.tensors import View

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}

UNARY: dict[str, Callable[[Any], Any]] = {
    "copy": lambda x: x,
    "exp": np.exp,
    "square": np.square,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}

REDUCTIONS = {
    "add": np.add,
    "max": np.maximum,
    "maximum": np.maximum,
    "min": np.minimum,
    "multiply": np.multiply,
}


def name_of(op: Any) -> str:
    """Returns the name of an operation that a kernel gives as `nl.exp`, `np.exp` or a name.

    Raises TypeError where it is no operation.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    if name is None:
        raise TypeError(f"{op!r} is no operation")
    return str(name)


def computed(view: View) -> Array:
    """Returns a view's elements as the engines read them: floats as fp32, integers as they are."""
    values = view.array()
    return values if values.dtype.kind in "iub" else values.astype(np.float32)


def stored(values: Array, view: View) -> None:
    """Writes a result into a view in its type; integers are rounded to nearest and saturate."""
    target = view.array()
    if target.dtype.kind in "iu" and values.dtype.kind == "f":
        limits = np.iinfo(target.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    target[...] = values.reshape(target.shape) if values.shape != target.shape else values
    if (flags := view.written()) is not None:
        flags[...] = True
