"""GGUF's four-bit blocks without conversion to floats: integers, scales and offsets.

The layouts are those of ggml (ggml-common.h, dequantize_row_q4_0, _q4_1 and _q4_K in ggml-quants.c): in 32
values the lower four bits of 16 bytes come first, then their upper four bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from corepipe.kernels.packing import Offsets
from corepipe.neuron.numerics.int4 import Int4

U8 = npt.NDArray[np.uint8]
F16 = npt.NDArray[np.float16]

GROUP = 32
SUB_BLOCKS = 8
"""Groups in a block of Q4_K."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Blocks [rows, blocks, bytes] as integers [rows, ..., 32], scales and offsets [rows, groups]."""

    values: U8
    scale: F16
    offset: F16 | None = None


def _halves(packed: U8) -> U8:
    """Splits [..., bytes] to [..., 2, bytes]: all lower four bits, then all upper ones."""
    return np.stack((packed & 15, packed >> 4), axis=-2)


def _fp16(blocks: U8, start: int) -> F16:
    return np.ascontiguousarray(blocks[:, :, start : start + 2]).view("<f2")[:, :, 0].astype(np.float16)


def _q4_0(blocks: U8) -> _Groups:
    return _Groups(_halves(blocks[:, :, 2:]), _fp16(blocks, 0))


def _q4_1(blocks: U8) -> _Groups:
    return _Groups(_halves(blocks[:, :, 4:]), _fp16(blocks, 0), _fp16(blocks, 2))


def _q4_k(blocks: U8) -> _Groups:
    """Unpacks eight groups: their scales and minima are integers of six bits, times one block scale for each
    kind.

    A product has up to 17 bits, of which fp16 keeps 11: rounded to nearest, once.
    """
    scale, minimum = (_fp16(blocks, at).astype(np.float32)[:, :, None] for at in (0, 2))
    first, second, mixed = (blocks[:, :, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((first & 63, mixed & 15 | first >> 6 << 4), axis=2)
    minima = np.concatenate((second & 63, mixed >> 4 | second >> 6 << 4), axis=2)
    rows, count, _ = blocks.shape
    pairs = _halves(blocks[:, :, 16:].reshape(rows, count, SUB_BLOCKS // 2, GROUP))
    with np.errstate(over="ignore"):  # a damaged scale; the caller checks it when it makes an Int4
        return _Groups(pairs, (scale * scales).astype(np.float16), (-minimum * minima).astype(np.float16))


@dataclass(frozen=True, slots=True)
class _BlockFormat:
    offsets: Offsets
    groups: Callable[[U8], _Groups]


_FORMATS: Mapping[str, _BlockFormat] = MappingProxyType(
    {
        "Q4_0": _BlockFormat("none", _q4_0),
        "Q4_1": _BlockFormat("minima", _q4_1),
        "Q4_K": _BlockFormat("minima", _q4_k),
    }
)

FOUR_BITS = tuple(_FORMATS)
"""Block types with a grid of four bits."""


def read_blocks(name: str, data: U8, rows: int, block_bytes: int) -> Int4:
    """Unpacks a matrix of `rows` rows in one of `FOUR_BITS`.

    Raises ValueError for scales that are not finite.
    """
    kind = _FORMATS[name]
    found = kind.groups(data.reshape(rows, -1, block_bytes))
    offset = None if found.offset is None else found.offset.reshape(rows, -1)
    return Int4(found.values.reshape(rows, -1), found.scale.reshape(rows, -1), GROUP, kind.offsets, offset)
