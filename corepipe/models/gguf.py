"""GGUF files: a strict header reader, and tensors dequantised to fp32 under Hugging Face names.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.  The blocks of quantised tensors
are unpacked by the gguf library; its header reader trusts the file and takes seconds, ours does neither.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.models.checkpoint import fingerprint, missing, read_array, widen_bf16

MAX_ENTRIES = 1 << 20
MAX_DIMS = 4
MAX_STRING = 1 << 24
SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor encoding: `elements` at a time in `bytes`."""

    name: str
    elements: int
    bytes: int


BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor; `shape` is row-major (GGUF writes it reversed), `offset` counts from the file's start."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int

    @property
    def type(self) -> BlockType:
        return BLOCK_TYPES[self.type_id]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.type.elements * self.type.bytes


class _Cursor:
    """Reads values one after the other and refuses to leave the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def error(self, why: str) -> UserError:
        return UserError(
            f"{self.path}: not a readable GGUF file: {why} (at byte {self.at} of {len(self.data)})"
        )

    def need(self, count: int) -> int:
        """The position of the next `count` bytes, which are consumed."""
        start = self.at
        if count > len(self.data) - start:
            raise self.error(f"truncated: the header wants {count} more bytes")
        self.at = start + count
        return start

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from(code, self.data, self.need(struct.calcsize(code)))
        return value

    def integer(self, code: str, most: int, what: str) -> int:
        value = int(self.scalar(code))
        if value > most:
            raise self.error(f"{what} is {value}, more than {most}")
        return value

    def string(self, what: str) -> str:
        length = self.integer("<Q", MAX_STRING, f"the length of {what}")
        start = self.need(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error

    def value(self, key: str, kind: int) -> object:
        if kind == STRING:
            return self.string(f"the value of {key}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.error(f"{key} has the unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def array(self, key: str) -> list[object]:
        kind = self.integer("<I", 1 << 31, f"the type of {key}")
        if kind != STRING and kind not in SCALARS:
            raise self.error(f"{key} is an array of the unsupported type {kind}")
        least = 8 if kind == STRING else struct.calcsize(SCALARS[kind])
        count = self.integer("<Q", (len(self.data) - self.at) // least, f"the length of {key}")
        if kind == STRING:
            return [self.string(key) for _ in range(count)]
        start = self.need(count * least)
        return list(struct.unpack_from(f"<{count}{SCALARS[kind][1]}", self.data, start))


class GgufFile:
    """Metadata and tensor list of a GGUF file (versions 2 and 3, little-endian), checked against its size.

    Raises UserError for files that are truncated, inconsistent, or hold encodings we do not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                self._parse(_Cursor(path, data))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path}: an empty file, not a GGUF file") from error

    def _parse(self, cursor: _Cursor) -> None:
        if cursor.data[:4] != b"GGUF":
            raise cursor.error("it does not start with GGUF")
        cursor.need(4)
        version = int(cursor.scalar("<I"))
        if version not in (2, 3):
            raise cursor.error(f"version {version} (known: 2 and 3, little-endian)")
        tensors = cursor.integer("<Q", MAX_ENTRIES, "the number of tensors")
        entries = cursor.integer("<Q", MAX_ENTRIES, "the number of metadata entries")
        self.metadata: dict[str, object] = {}
        for _ in range(entries):
            key = cursor.string("a metadata key")
            if key in self.metadata:
                raise cursor.error(f"{key} appears twice")
            self.metadata[key] = cursor.value(key, int(cursor.scalar("<I")))
        self.tensors = self._tensors(cursor, tensors)
        self.header = cursor.data[: cursor.at]
        self._check_layout(len(cursor.data))

    def _tensors(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        listed: dict[str, GgufTensor] = {}
        for _ in range(count):
            tensor = _tensor(cursor)
            if tensor.name in listed:
                raise cursor.error(f"tensor {tensor.name} appears twice")
            listed[tensor.name] = tensor
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise cursor.error(f"general.alignment is {alignment!r:.40}, not a power of two")
        start = -(-cursor.at // alignment) * alignment
        for name, t in listed.items():
            if t.offset % alignment:
                raise cursor.error(f"tensor {name} is not aligned to {alignment} bytes")
            listed[name] = GgufTensor(name, t.type_id, t.shape, start + t.offset)
        return listed

    def _check_layout(self, size: int) -> None:
        """No tensor overlaps another, none goes past the end."""
        ordered = sorted(self.tensors.values(), key=lambda t: t.offset)
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise UserError(f"{self.path}: tensors {before.name} and {after.name} overlap")
        end = max((t.offset + t.nbytes for t in ordered), default=0)
        if end > size:
            raise UserError(f"{self.path}: truncated: {size} bytes, the tensors need {end}")

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor by its GGUF name, dequantised, in its row-major shape."""
        tensor = self.tensors[name]
        if tensor.type.name == "F32":
            single = read_array(self.path, "<f4", tensor.nbytes // 4, tensor.offset, name)
            return single.astype(np.float32, copy=False).reshape(tensor.shape)
        if tensor.type.name == "F16":
            half = read_array(self.path, "<f2", tensor.nbytes // 2, tensor.offset, name)
            return half.astype(np.float32).reshape(tensor.shape)
        if tensor.type.name == "BF16":
            bits = read_array(self.path, "<u2", tensor.nbytes // 2, tensor.offset, name)
            return widen_bf16(bits).reshape(tensor.shape)
        return self._dequantise(tensor)

    def _dequantise(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        # Imported here: it costs 0.15 s that a start from packed weights need not pay.
        from gguf import GGMLQuantizationType  # noqa: PLC0415
        from gguf.quants import dequantize  # noqa: PLC0415

        raw = read_array(self.path, "u1", tensor.nbytes, tensor.offset, tensor.name)
        blocks = raw.reshape(-1, tensor.shape[-1] // tensor.type.elements * tensor.type.bytes)
        values = dequantize(blocks, GGMLQuantizationType(tensor.type_id))
        return np.ascontiguousarray(values, np.float32).reshape(tensor.shape)


def _tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.string("a tensor's name")
    dims = cursor.integer("<I", MAX_DIMS, f"the number of dimensions of {name}")
    shape = tuple(cursor.integer("<Q", 1 << 40, f"a dimension of {name}") for _ in range(dims))[::-1]
    type_id = cursor.integer("<I", 1 << 31, f"the type of {name}")
    if type_id not in BLOCK_TYPES:
        known = ", ".join(t.name for t in BLOCK_TYPES.values())
        raise cursor.error(f"tensor {name} has the unsupported encoding {type_id} (known: {known})")
    if not shape or 0 in shape or shape[-1] % BLOCK_TYPES[type_id].elements:
        raise cursor.error(f"tensor {name} of {BLOCK_TYPES[type_id].name} has shape {list(shape)}")
    return GgufTensor(name, type_id, shape, cursor.integer("<Q", 1 << 60, f"the offset of {name}"))


LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None for those that are no weights of the forward pass."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in LAYER_NAMES:
        return None
    return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.{match[3]}"


class GgufCheckpoint:
    """The weights of a GGUF file.

    `permuted_heads` gives, for architecture llama, how many heads the rows of "q_proj" and "k_proj"
    hold: llama.cpp's converter interleaves the two halves of each head there, which is undone.
    """

    def __init__(self, file: GgufFile, permuted_heads: dict[str, int]) -> None:
        self.path = file.path
        self.fingerprint = fingerprint([(file.path, file.header)])
        self._file = file
        self._names = {hf: name for name in file.tensors if (hf := hf_name(name)) is not None}
        self._permuted_heads = permuted_heads

    def names(self) -> Iterable[str]:
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._name(name)].shape

    def file(self, name: str) -> Path:  # noqa: ARG002 -- the protocol's: one file holds all
        return self.path

    def read(self, name: str) -> npt.NDArray[np.float32]:
        values = self._file.read(self._name(name))
        heads = self._permuted_heads.get(name.split(".")[-2])
        return values if heads is None else _separate_halves(values, heads)

    def _name(self, name: str) -> str:
        if name not in self._names:
            raise missing(self.path, name)
        return self._names[name]


def _separate_halves(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows (x0, y0, x1, y1, ...) of each head back to (x0, x1, ..., y0, y1, ...)."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
