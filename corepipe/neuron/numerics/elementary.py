"""Cosines, powers and logarithms with the same bits on every machine.

numpy's differ in their last bits between CPUs (it has several ways to compute each), those of C libraries
between systems.  Here arrays use operations that IEEE 754 defines to the last bit, and single numbers are
computed in decimals.
"""

from __future__ import annotations

from decimal import Context, Decimal
from math import factorial

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_DECIMAL = Context(prec=40)

_QUARTER = tuple(map(float.fromhex, ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69")))
"""pi / 2 in parts, of which the first two have so few bits that up to 2**20 times each is exact."""

_PIECE = 1 << 14
"""Numbers that are processed at a time: the intermediate arrays stay in the second-level cache."""


def power(base: float, exponent: float) -> float:
    """Returns base ** exponent of a positive base, to the nearest double."""
    return float(_DECIMAL.power(Decimal(base), Decimal(exponent)))


def log(x: float) -> float:
    """Returns the natural logarithm of a positive number, to the nearest double."""
    return float(_DECIMAL.ln(Decimal(x)))


def cos_sin(angles: F64) -> tuple[F64, F64]:
    """Returns cosines and sines, within 1e-15 for angles up to a million."""
    flat = np.ascontiguousarray(angles, np.float64).reshape(-1)
    cos, sin = np.empty_like(flat), np.empty_like(flat)
    for start in range(0, flat.size, _PIECE):
        piece = slice(start, start + _PIECE)
        cos[piece], sin[piece] = _cos_sin(flat[piece])
    return cos.reshape(angles.shape), sin.reshape(angles.shape)


def _cos_sin(x: F64) -> tuple[F64, F64]:
    quarters = np.rint(x * (1 / _QUARTER[0]))
    rest = x - quarters * _QUARTER[0] - quarters * _QUARTER[1] - quarters * _QUARTER[2]  # at most pi / 4
    square = rest * rest
    cos, sin = _series(square, 0), rest * _series(square, 1)
    turn = quarters.astype(np.int64)
    swapped = turn & 1 == 1
    return (
        np.where(swapped, sin, cos) * (1 - (turn + 1 & 2)),
        np.where(swapped, cos, sin) * (1 - (turn & 2)),
    )


def _series(square: F64, first: int) -> F64:
    """Returns 1 - square / ((first + 1) (first + 2)) + ...: Taylor's series of the cosine (0), and of sin(x)
    / x (1)."""
    minus = -square
    total = np.full_like(square, 1 / factorial(first + 18))
    for n in range(first + 16, -1, -2):
        total *= minus
        total += 1 / factorial(n)
    return total
