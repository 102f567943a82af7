"""Packs weight matrices into the panels that `_native.Matrix` reads.

A panel holds 32 columns (rows of the [n, k] weight).  n is padded to a multiple of 32 and k to one of 64,
with zeros.  Layouts are little-endian:

    int8   u8 (w + 128)  [n/32][k/4][32][4]
    int8w  s8            [n/32][k/2][32][2]
    bf16   bf16          [n/32][k/2][32][2]
    fp32   f32           [n/32][k][32]
    int4*  [n/32][k/64] of: scales fp16 [64/group][32], offsets alike where there are any, and u4
           [16][16][4] pairs (k, columns, k), the lower four bits of columns 0-15, the upper of 16-31

The name of an int4 kind says its group and its offsets: int4g32, int4g32z (zeros), int4g64m (minima).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

PANEL = 32
"""Columns of n in a panel."""
K_MULTIPLE = 64
"""k is padded to a multiple of this, the width of an int8 activation group."""

DenseKind = Literal["int8", "int8w", "bf16", "fp32"]
Int4Kind = Literal["int4g32", "int4g32z", "int4g32m", "int4g64", "int4g64z", "int4g64m"]
Kind = DenseKind | Int4Kind
Offsets = Literal["none", "zeros", "minima"]
"""The number that q of four bits and its scale s stand for: (q - 8) s, (q + offset) s, or q s + offset."""

_OFFSETS: tuple[Offsets, ...] = get_args(Offsets)
DENSE_KINDS: tuple[DenseKind, ...] = get_args(DenseKind)
INT4_KINDS: tuple[Int4Kind, ...] = get_args(Int4Kind)

_ELEMENT_BYTES: dict[Kind, int] = {"int8": 1, "int8w": 1, "bf16": 2, "fp32": 4}
_INTERLEAVE: dict[Kind, int] = {"int8": 4, "int8w": 2, "bf16": 2, "fp32": 1}
"""Neighbouring elements of k that are stored together."""
_INT8_OFFSET = 128
_INT8_LIMIT = 127
_INT4_LIMIT = 15


def packed_bytes(kind: Kind, n: int, k: int) -> int:
    """Returns the size of a packed [n, k] matrix in bytes."""
    if kind in INT4_KINDS:
        return _padded(n, PANEL) // PANEL * (_padded(k, K_MULTIPLE) // K_MULTIPLE) * _int4_layout(kind).nbytes
    return _padded(n, PANEL) * _padded(k, K_MULTIPLE) * _ELEMENT_BYTES[kind]


def pack(kind: Kind, weight: npt.NDArray[np.float32] | npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Packs weight [n, k] into its panels, as bytes.

    weight is int8 for "int8" and "int8w" (the scales stay with the caller) and fp32 for the others; "bf16"
    rounds to nearest even.  Raises ValueError for another dtype or rank, for int4 kinds (see pack_int4), and
    for -128 as "int8w", which the kernels' table of bf16 values lacks (symmetric quantisation ends at -127).
    """
    if (
        kind in INT4_KINDS
        or weight.ndim != 2
        or weight.dtype != (np.int8 if kind.startswith("int8") else np.float32)
    ):
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
    """Reverses pack: returns weight [n, k], int8 for the int8 kinds and fp32 for the others.

    Raises ValueError where data has another size than packed_bytes(kind, n, k).
    """
    if data.size != packed_bytes(kind, n, k):
        raise ValueError(f"a packed {kind} [{n}, {k}] has {packed_bytes(kind, n, k)} bytes, not {data.size}")
    step = _INTERLEAVE[kind]
    padded_k = _padded(k, K_MULTIPLE)
    panels = _values(kind, data).reshape(-1, padded_k // step, PANEL, step)
    return np.ascontiguousarray(panels.swapaxes(1, 2).reshape(-1, padded_k)[:n, :k])


class Int4Arrays(NamedTuple):
    """Numbers [n, k] u8 from 0 to 15; scales and, if the kind has them, offsets [n, k / group] fp16."""

    values: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float16]
    offset: npt.NDArray[np.float16] | None


def int4_kind(group: int, offsets: Offsets) -> Int4Kind:
    """Returns the kind with such groups.  Raises ValueError where there is none."""
    kind = f"int4g{group}{'' if offsets == 'none' else offsets[0]}"
    for known in INT4_KINDS:
        if kind == known:
            return known
    raise ValueError(f"no kernel has groups of {group} with offsets that are {offsets}")


def int4_form(kind: Int4Kind) -> tuple[int, Offsets]:
    """Returns the group and the offsets of a kind."""
    return next(
        (group, offsets) for group in (32, 64) for offsets in _OFFSETS if int4_kind(group, offsets) == kind
    )


def pack_int4(kind: Int4Kind, arrays: Int4Arrays) -> npt.NDArray[np.uint8]:
    """Packs numbers of four bits, their scales and offsets into panels, as bytes.

    Raises ValueError for shapes or dtypes that are not those of the kind, and for numbers above 15.
    """
    layout = _int4_layout(kind)
    values, scale, offset = arrays
    n, k = values.shape
    if values.dtype != np.uint8 or values.max(initial=0) > _INT4_LIMIT:
        raise ValueError(f"cannot pack {values.dtype} as {kind}: numbers are u8 from 0 to {_INT4_LIMIT}")
    given = [numbers for numbers in (scale, offset) if numbers is not None]
    if len(given) != layout.arrays or any(
        numbers.shape != (n, -(-k // layout.group)) or numbers.dtype != np.float16 for numbers in given
    ):
        raise ValueError(f"cannot pack scales {[numbers.shape for numbers in given]} as {kind}")
    panels, steps = _padded(n, PANEL) // PANEL, _padded(k, K_MULTIPLE) // K_MULTIPLE
    parts = [_in_panels(numbers, panels, steps, layout) for numbers in given]
    padded = np.zeros((panels * PANEL, steps * K_MULTIPLE), np.uint8)
    padded[:n, :k] = values
    halves = padded.reshape(panels, 2, PANEL // 2, steps, K_MULTIPLE // 4, 4)
    both = halves[:, 0] | halves[:, 1] << 4
    pairs = both.transpose(0, 2, 3, 1, 4).reshape(panels, steps, -1)
    return np.concatenate((*parts, pairs), axis=2).reshape(-1)


def unpack_int4(kind: Int4Kind, data: npt.NDArray[np.uint8], n: int, k: int) -> Int4Arrays:
    """Reverses pack_int4.  Raises ValueError where data has another size than packed_bytes says."""
    if data.size != packed_bytes(kind, n, k):
        raise ValueError(f"a packed {kind} [{n}, {k}] has {packed_bytes(kind, n, k)} bytes, not {data.size}")
    layout, panels, steps = (
        _int4_layout(kind),
        _padded(n, PANEL) // PANEL,
        _padded(k, K_MULTIPLE) // K_MULTIPLE,
    )
    groups = data.reshape(panels, steps, layout.nbytes)
    numbers = [
        _out_of_panels(groups[:, :, i * layout.scale_bytes : (i + 1) * layout.scale_bytes], n, k, layout)
        for i in range(layout.arrays)
    ]
    both = groups[:, :, layout.arrays * layout.scale_bytes :].reshape(panels, steps, 16, PANEL // 2, 4)
    halves = np.stack((both & _INT4_LIMIT, both >> 4), axis=1)
    values = halves.transpose(0, 1, 4, 2, 3, 5).reshape(panels * PANEL, -1)
    return Int4Arrays(
        np.ascontiguousarray(values[:n, :k]), numbers[0], numbers[1] if len(numbers) > 1 else None
    )


class _Int4Layout(NamedTuple):
    """The layout of 64 elements of k in a panel: elements that share a scale, and the number of arrays of
    scales and offsets."""

    group: int
    arrays: int

    @property
    def scale_bytes(self) -> int:
        """Bytes of one array."""
        return 2 * PANEL * K_MULTIPLE // self.group

    @property
    def nbytes(self) -> int:
        return self.arrays * self.scale_bytes + PANEL * K_MULTIPLE // 2


def _int4_layout(kind: Kind) -> _Int4Layout:
    return _Int4Layout(int(kind[5:7]), 1 if kind[7:] == "" else 2)


def _in_panels(
    numbers: npt.NDArray[np.float16], panels: int, steps: int, layout: _Int4Layout
) -> npt.NDArray[np.uint8]:
    """Converts scales [n, groups] to bytes [panels, steps, 64 / group * 32 * 2]."""
    each = K_MULTIPLE // layout.group
    padded = np.zeros((panels * PANEL, steps * each), np.float16)
    padded[: numbers.shape[0], : numbers.shape[1]] = numbers
    ordered = padded.reshape(panels, PANEL, steps, each).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).reshape(panels, steps, -1).view(np.uint8)


def _out_of_panels(
    data: npt.NDArray[np.uint8], n: int, k: int, layout: _Int4Layout
) -> npt.NDArray[np.float16]:
    panels, steps, _ = data.shape
    each = K_MULTIPLE // layout.group
    halves = np.ascontiguousarray(data).view(np.float16).reshape(panels, steps, each, PANEL)
    ordered = halves.transpose(0, 3, 1, 2).reshape(panels * PANEL, -1)
    return np.ascontiguousarray(ordered[:n, : -(-k // layout.group)])


ADAPTER_STEP, ADAPTER_TILE = 32, 8
"""Elements that lie together in an adapter's matrices, to a multiple of which k and n are padded; and rows of
a that do."""


def pack_adapter(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], *, bf16: bool
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Packs the matrices a [rank, k] and b [n, rank] of an adapter, as bytes.

    Layouts: a in tiles of 8 rows, and one of the rest, [k/32][rows][32]; b [n/32][rank][32].  With `bf16`
    each 32 elements are 16 words: element i in the low half of word i, element i + 16 in the high half.
    """
    rank, n = len(a), len(b)
    wide = np.zeros((rank, _padded(a.shape[1], ADAPTER_STEP)), np.float32)
    wide[:, : a.shape[1]] = a
    steps = wide.reshape(rank, -1, ADAPTER_STEP)
    tiles = [steps[at : at + ADAPTER_TILE].swapaxes(0, 1).reshape(-1) for at in range(0, rank, ADAPTER_TILE)]
    tall = np.zeros((_padded(n, ADAPTER_STEP), rank), np.float32)
    tall[:n] = b
    panels = tall.reshape(-1, ADAPTER_STEP, rank).swapaxes(1, 2)
    return _steps(np.concatenate(tiles), bf16=bf16), _steps(panels, bf16=bf16)


def _steps(values: npt.NDArray[np.float32], *, bf16: bool) -> npt.NDArray[np.uint8]:
    steps = np.ascontiguousarray(values).reshape(-1, 2, ADAPTER_STEP // 2)
    stored = np.ascontiguousarray(to_bf16(steps).swapaxes(1, 2)) if bf16 else steps
    return stored.reshape(-1).view(np.uint8)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Returns the bits of values rounded to bf16, ties to even."""
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def _stored(kind: Kind, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if kind == "int8":
        return values.view(np.uint8) ^ np.uint8(_INT8_OFFSET)
    return to_bf16(values) if kind == "bf16" else values


def _values(kind: Kind, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Reverses _stored, from bytes."""
    if kind == "int8":
        return (data ^ np.uint8(_INT8_OFFSET)).view(np.int8)
    if kind == "int8w":
        return data.view(np.int8)
    return data.view(ml_dtypes.bfloat16).astype(np.float32) if kind == "bf16" else data.view(np.float32)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
