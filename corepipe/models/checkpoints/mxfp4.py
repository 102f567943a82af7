"""MXFP4 in safetensors as gpt-oss has it: four-bit floats, 32 of which share a power of two.

A tensor X of [experts, N, K] is X_blocks [experts, N, K / 32, 16], of bytes whose low half comes first, and
X_scales [experts, N, K / 32], exponents above 127 (OCP Microscaling Formats 1.0, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corepipe.errors import shown
from corepipe.models.checkpoints.checkpoint import StoredAs, finite
from corepipe.models.checkpoints.partly_quantized import PartlyQuantized, contradiction
from corepipe.models.checkpoints.quantization import Quantization
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.formats import MX_GROUP
from corepipe.neuron.numerics.int4 import ALL, Stored

F32 = npt.NDArray[np.float32]

BLOCKS, SCALES = "_blocks", "_scales"
BYTES = MX_GROUP // 2
"""Bytes of a block."""
BIAS, NOT_A_NUMBER = 127, 255
"""The code of exponent 0, and the code of NaN."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate((E2M1, -E2M1))
"""The values of the 16 halves of a byte."""
DIMENSIONS = 4
"""Dimensions of the tensor of blocks."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A tensor of blocks, and the shape of its floats."""

    stored: str
    shape: tuple[int, int, int]


class Mxfp4Checkpoint(PartlyQuantized[_Blocks]):
    """A checkpoint with some tensors in MXFP4, each read as floats [experts, N, K] under the name of its
    blocks.

    Raises UserError for blocks and scales that do not fit each other.
    """

    stored_as = StoredAs(f"mxfp4 in groups of {MX_GROUP}", floats=f"mxfp4 in groups of {MX_GROUP}")

    def __init__(self, plain: SafetensorsCheckpoint, quantization: Quantization) -> None:
        found = [name for name in plain.names() if name.endswith(BLOCKS)]
        weights = {name: _Blocks(name, _described(plain, name)) for name in found}
        super().__init__(plain, quantization, weights, map(_scales_of, found))

    def read(self, name: str, rows: slice = ALL) -> F32:
        """Returns exact values for any exponent of fp32 and bf16; raises UserError for others."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        shape = self._weights[name].shape
        start, stop, _ = rows.indices(shape[0])
        packed = self._plain.raw(name, start, stop).view(np.uint8)
        scales = self._plain.raw(_scales_of(name), start, stop).view(np.uint8)
        values = np.empty((*scales.shape, BYTES, 2), np.float32)
        values[..., 0], values[..., 1] = VALUES[packed & 0xF], VALUES[packed >> 4]
        with np.errstate(over="ignore"):  # `finite` checks for overflow below
            np.ldexp(values, (scales.astype(np.int32) - BIAS)[..., None, None], out=values)
        values[scales == NOT_A_NUMBER] = np.nan
        return finite(values.reshape(stop - start, *shape[1:]), self.file(name), name)

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns floats: the steps of these four-bit values are unequal."""
        return self.read(name, rows)

    def by_rows(self, name: str) -> bool:  # noqa: ARG002 -- the protocol's parameter; rows are contiguous
        return True


def _described(plain: SafetensorsCheckpoint, name: str) -> tuple[int, int, int]:
    scales = _scales_of(name)
    for part in (name, scales):
        if not plain.has(part):
            raise contradiction(plain, name, f"has no scales: {shown(part)} is missing")
        if plain.dtype(part) != "U8":
            raise contradiction(plain, part, f"is {plain.dtype(part)}; MXFP4 is kept in bytes (U8)")
    blocks, groups = plain.shape_of(name), plain.shape_of(scales)
    if len(blocks) != DIMENSIONS or blocks[-1] != BYTES or 0 in blocks:
        raise contradiction(plain, name, f"has shape {list(blocks)}, not [experts, rows, groups, {BYTES}]")
    if groups != blocks[:-1]:
        raise contradiction(plain, scales, f"has shape {list(groups)}, not {list(blocks[:-1])}")
    experts, rows, count, _ = blocks
    return experts, rows, count * MX_GROUP


def _scales_of(blocks: str) -> str:
    return blocks.removesuffix(BLOCKS) + SCALES
