"""GGUF's block types, and their values in fp32.

The gguf library unpacks the blocks: it is the format's own, needs numpy alone, and knows all types. This
module passes it bounded pieces: it makes a dozen arrays as large as the piece it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.models.checkpoints.checkpoint import read_array, widen_bf16

PIECE = 1 << 18
"""Values that are unpacked at once: with the intermediate arrays they fit in a core's L2 cache."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor encoding: `elements` values are stored in `bytes`; `number` is its id in files."""

    number: int
    name: str
    elements: int
    bytes: int


BLOCK_TYPES = {
    t.number: t
    for t in (
        BlockType(0, "F32", 1, 4),
        BlockType(1, "F16", 1, 2),
        BlockType(2, "Q4_0", 32, 18),
        BlockType(3, "Q4_1", 32, 20),
        BlockType(6, "Q5_0", 32, 22),
        BlockType(7, "Q5_1", 32, 24),
        BlockType(8, "Q8_0", 32, 34),
        BlockType(10, "Q2_K", 256, 84),
        BlockType(11, "Q3_K", 256, 110),
        BlockType(12, "Q4_K", 256, 144),
        BlockType(13, "Q5_K", 256, 176),
        BlockType(14, "Q6_K", 256, 210),
        BlockType(16, "IQ2_XXS", 256, 66),
        BlockType(17, "IQ2_XS", 256, 74),
        BlockType(18, "IQ3_XXS", 256, 98),
        BlockType(19, "IQ1_S", 256, 50),
        BlockType(20, "IQ4_NL", 32, 18),
        BlockType(21, "IQ3_S", 256, 110),
        BlockType(22, "IQ2_S", 256, 82),
        BlockType(23, "IQ4_XS", 256, 136),
        BlockType(29, "IQ1_M", 256, 56),
        BlockType(30, "BF16", 1, 2),
        BlockType(34, "TQ1_0", 256, 54),
        BlockType(35, "TQ2_0", 256, 66),
        BlockType(39, "MXFP4", 32, 17),
        BlockType(40, "NVFP4", 64, 36),
    )
}
"""The block types that weights are read from."""

OTHERS = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    41: "Q1_0",
}
"""ggml's other types: given up, not for weights, or not unpacked by the gguf library."""


def type_name(number: int) -> str:
    """Returns how a message names a type, known or not."""
    name = BLOCK_TYPES[number].name if number in BLOCK_TYPES else OTHERS.get(number)
    return f"of the unknown block type {number}" if name is None else f"of block type {number} ({name})"


def dequantise(path: Path, kind: BlockType, count: int, offset: int, name: str) -> npt.NDArray[np.float32]:
    """Returns `count` values of the tensor `name`, which begins at byte `offset` of a file.

    Values may be anything where the file is damaged. Raises UserError where it cannot be read.
    """
    if kind.name == "F32":
        return read_array(path, "<f4", count, offset, name).astype(np.float32, copy=False)
    if kind.name == "F16":
        return read_array(path, "<f2", count, offset, name).astype(np.float32)
    if kind.name == "BF16":
        return widen_bf16(read_array(path, "<u2", count, offset, name))
    values = np.empty(count, np.float32)
    for start in range(0, count, PIECE):
        piece = values[start : start + PIECE]
        nbytes = len(piece) // kind.elements * kind.bytes
        piece[:] = _unpack(kind, read_array(path, "u1", nbytes, offset, name))
        offset += nbytes
    return values


def _unpack(kind: BlockType, blocks: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    # Imported here: it costs 0.15 s, which a start from packed weights does not need.
    from gguf import GGMLQuantizationType  # noqa: PLC0415
    from gguf.quants import dequantize  # noqa: PLC0415

    # A damaged scale overflows; the caller checks that values are finite.
    with np.errstate(all="ignore"):
        # As one row: the library unpacks few rows at a time, and some tensors have short rows.
        unpacked: npt.NDArray[np.float32] = dequantize(
            blocks.reshape(1, -1), GGMLQuantizationType(kind.number)
        )
    return unpacked.reshape(-1)
