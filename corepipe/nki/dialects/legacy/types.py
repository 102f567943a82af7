"""Types of elements, and those of results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def wider(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the type of a result of operands of these types: the wider one, fp32 where neither holds
    both."""
    found = dtypes[0]
    for other in dtypes[1:]:
        found = found if found == other else _joined(found, other)
    return found


def _joined(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    if a.kind in "iub" and b.kind in "iub":
        if a.itemsize == b.itemsize == 4:
            return np.dtype(np.float32)  # int32 and uint32
        return a if a.itemsize >= b.itemsize else b
    if a.kind in "iub":
        return b
    if b.kind in "iub":
        return a
    if a.itemsize == b.itemsize:
        return np.dtype(np.float32) if a.itemsize > 1 else BFLOAT16
    return a if a.itemsize > b.itemsize else b


def with_number(dtype: np.dtype[Any], number: Any) -> np.dtype[Any]:
    """Returns the type of a result of a tile and a number, which has no type of its own."""
    if dtype.kind in "iub" and isinstance(number, float) and not number.is_integer():
        return np.dtype(np.float32)
    return dtype
