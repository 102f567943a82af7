"""Packs weight matrices into the panels that `_native.Matrix` reads.

A panel holds 32 columns (rows of the [n, k] weight).  n is padded to a multiple of 32 and k to one of 64,
with zeros.  Layouts are little-endian:

    int8   u8 (w + 128)  [n/32][k/4][32][4]
    int8w  s8            [n/32][k/2][32][2]
    bf16   bf16          [n/32][k/2][32][2]
    fp32   f32           [n/32][k][32]
"""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

PANEL = 32
"""Columns of n in a panel."""
K_MULTIPLE = 64
"""k is padded to a multiple of this, the width of an int8 activation group."""

Kind = Literal["int8", "int8w", "bf16", "fp32"]

_ELEMENT_BYTES: dict[Kind, int] = {"int8": 1, "int8w": 1, "bf16": 2, "fp32": 4}
_INTERLEAVE: dict[Kind, int] = {"int8": 4, "int8w": 2, "bf16": 2, "fp32": 1}  # elements of k side by side
_INT8_OFFSET = 128
_INT8_LIMIT = 127


def packed_bytes(kind: Kind, n: int, k: int) -> int:
    """Size of a packed [n, k] matrix in bytes."""
    return _padded(n, PANEL) * _padded(k, K_MULTIPLE) * _ELEMENT_BYTES[kind]


def pack(kind: Kind, weight: npt.NDArray[np.float32] | npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Packs weight [n, k] into its panels, as bytes.

    weight is int8 for "int8" and "int8w" (the scales stay with the caller) and fp32 for the others; "bf16"
    rounds to nearest even.  Raises ValueError for another dtype or rank, and for -128 as "int8w", which the
    kernels' table of bf16 values lacks (symmetric quantisation ends at -127).
    """
    if weight.ndim != 2 or weight.dtype != (np.int8 if kind.startswith("int8") else np.float32):
        raise ValueError(f"cannot pack {weight.dtype} {weight.shape} as {kind}")
    if kind == "int8w" and weight.min(initial=0) < -_INT8_LIMIT:
        raise ValueError("cannot pack -128 as int8w")
    n, k = weight.shape
    padded = np.zeros((_padded(n, PANEL), _padded(k, K_MULTIPLE)), dtype=weight.dtype)
    padded[:n, :k] = weight
    step = _INTERLEAVE[kind]
    panels = padded.reshape(-1, PANEL, padded.shape[1] // step, step).swapaxes(1, 2)
    return np.ascontiguousarray(_stored(kind, panels)).reshape(-1).view(np.uint8)


def unpack(
    kind: Kind, data: npt.NDArray[np.uint8], n: int, k: int
) -> npt.NDArray[np.float32] | npt.NDArray[np.int8]:
    """The inverse of pack: weight [n, k], int8 for the int8 kinds and fp32 for the others.

    Raises ValueError where data has another size than packed_bytes(kind, n, k).
    """
    if data.size != packed_bytes(kind, n, k):
        raise ValueError(f"a packed {kind} [{n}, {k}] has {packed_bytes(kind, n, k)} bytes, not {data.size}")
    step = _INTERLEAVE[kind]
    padded_k = _padded(k, K_MULTIPLE)
    panels = _values(kind, data).reshape(-1, padded_k // step, PANEL, step)
    return np.ascontiguousarray(panels.swapaxes(1, 2).reshape(-1, padded_k)[:n, :k])


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of values rounded to bf16, ties to even."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def _stored(kind: Kind, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if kind == "int8":
        return values.view(np.uint8) ^ np.uint8(_INT8_OFFSET)
    return to_bf16(values) if kind == "bf16" else values


def _values(kind: Kind, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The inverse of _stored, from bytes."""
    if kind == "int8":
        return (data ^ np.uint8(_INT8_OFFSET)).view(np.int8)
    if kind == "int8w":
        return data.view(np.int8)
    return data.view(ml_dtypes.bfloat16).astype(np.float32) if kind == "bf16" else data.view(np.float32)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
