"""GGUF files: a strict header reader, and tensors dequantised to fp32.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf library also has a header
reader, which trusts the file and takes seconds; this one does neither.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedReader, FileIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import finite, placed, read_array
from corepipe.models.checkpoints.files import regular_size, unreadable
from corepipe.models.checkpoints.gguf_blocks import BLOCK_TYPES, BlockType, dequantise, type_name
from corepipe.models.checkpoints.gguf_int4 import FOUR_BITS, read_blocks
from corepipe.neuron.numerics.int4 import ALL, Int4

VERSIONS = (2, 3)
MAX_HEADER = 1 << 26
"""Bytes of metadata and tensor list; vocabularies of 262,144 tokens with their merges take some 20 MB."""
MAX_ENTRIES = 1 << 17
"""The most tensors, and the most metadata entries."""
MAX_ARRAY = 1 << 22
"""The most values of one metadata array, each of which becomes a Python object."""
MAX_DIMS = 4
MATRIX_DIMS = 2
MAX_STRING = 1 << 24
LENGTH_BYTES = 8  # the length of a string precedes it
_LENGTH = struct.Struct("<Q")
BUFFER_BYTES = 1 << 20
MAX_NAME = 1 << 10
MAX_ALIGNMENT = 1 << 20
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
class GgufTensor:
    """A tensor; `shape` is row-major (GGUF writes it reversed), `offset` counts from the file's start."""

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    file: Path

    @property
    def type(self) -> BlockType:
        return BLOCK_TYPES[self.type_id]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.type.elements * self.type.bytes

    def rows(self, rows: slice) -> GgufTensor:
        """Returns some rows of it: whole blocks."""
        before, shape = placed(self.shape, rows)
        offset = self.offset + before // self.type.elements * self.type.bytes
        return replace(self, shape=shape, offset=offset)


class _Cursor:
    """Reads values one after the other and refuses to leave the file.

    Reads instead of mapping: a file that shrinks meanwhile is an error, where a mapping would kill the
    process.
    """

    def __init__(self, path: Path, stream: BufferedReader[FileIO], size: int) -> None:
        self.path = path
        self.size = size
        self.at = 0
        self._end = min(size, MAX_HEADER)
        self._stream = stream

    def error(self, why: str) -> UserError:
        return UserError(f"{self.path}: not a readable GGUF file: {why} (at byte {self.at} of {self.size})")

    @property
    def left(self) -> int:
        """The bytes that may still belong to the header."""
        return self._end - self.at

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        if count > self._end - self.at:
            if count > self.size - self.at:
                raise self.error(f"truncated: the header needs {count} more bytes")
            raise self.error(f"its header is longer than {MAX_HEADER} bytes")
        data = self._stream.read(count)
        if len(data) != count:
            raise self.error("it was truncated while it was read")
        self.at += count
        return data

    def scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return value

    def integer(self, code: str, most: int, what: str) -> int:
        value = int(self.scalar(code))
        if value > most:
            raise self.error(f"{what} is {value}, more than {most}")
        return value

    def string(self, what: str, most: int = MAX_STRING) -> str:
        length = int.from_bytes(self.take(LENGTH_BYTES), "little")
        if length > most:
            raise self.error(f"the length of {what} is {length}, more than {most}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8") from error

    def strings(self, count: int, what: str) -> list[str]:
        """Returns the next `count` strings, many at a time: vocabularies have a hundred thousand."""
        found: list[str] = []
        while len(found) < count:
            found.append(self.string(what))
            found += self._buffered_strings(count - len(found))
        return found

    def _buffered_strings(self, most: int) -> list[str]:
        """Returns the next strings that the stream's buffer holds whole, up to one that `string` refuses."""
        data = self._stream.peek()[: self.left]
        found, at, size = list[str](), 0, len(data)
        with suppress(UnicodeDecodeError, struct.error):  # struct.error: the length itself is incomplete
            for _ in range(most):
                end = at + LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
                if end > size:
                    break
                found.append(data[at + LENGTH_BYTES : end].decode())
                at = end
        self.take(at)
        return found

    def value(self, key: str, kind: int) -> object:
        if kind == STRING:
            return self.string(f"the value of {key}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.error(f"{key} has the unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def array(self, key: str) -> Sequence[object]:
        kind = self.integer("<I", 1 << 31, f"the type of {key}")
        if kind != STRING and kind not in SCALARS:
            raise self.error(f"{key} is an array of the unsupported type {kind}")
        least = LENGTH_BYTES if kind == STRING else struct.calcsize(SCALARS[kind])
        count = self.integer("<Q", min(self.left // least, MAX_ARRAY), f"the length of {key}")
        if kind == STRING:
            return self.strings(count, key)
        return list(struct.unpack(f"<{count}{SCALARS[kind][1]}", self.take(count * least)))


class GgufFile:
    """Metadata and tensor list of a GGUF file (versions 2 and 3, little-endian), checked against its size.

    `parts` are the files with their headers. Raises UserError for files that are truncated, inconsistent, or
    hold unknown encodings.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = regular_size(path)
        if not size:
            raise UserError(f"{path}: an empty file, not a GGUF file")
        try:
            with BufferedReader(path.open("rb", buffering=0), BUFFER_BYTES) as stream:
                cursor = _Cursor(path, stream, size)
                self._parse(cursor)
                stream.seek(0)
                self.parts = [(path, stream.read(cursor.at))]
        except OSError as error:
            raise unreadable(path, error) from error
        self._check_layout(size)

    def _parse(self, cursor: _Cursor) -> None:
        if cursor.take(4) != b"GGUF":
            raise cursor.error("it does not start with GGUF")
        version = int(cursor.scalar("<I"))
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            which = f"big-endian version {swapped}" if swapped in VERSIONS else f"version {version}"
            raise cursor.error(f"{which} (known: 2 and 3, little-endian)")
        tensors = cursor.integer("<Q", MAX_ENTRIES, "the number of tensors")
        entries = cursor.integer("<Q", MAX_ENTRIES, "the number of metadata entries")
        self.metadata: dict[str, object] = {}
        for _ in range(entries):
            key = cursor.string("a metadata key", MAX_NAME)
            if key in self.metadata:
                raise cursor.error(f"{shown(key)} appears twice")
            self.metadata[key] = cursor.value(shown(key), int(cursor.scalar("<I")))
        self.tensors = self._tensors(cursor, tensors)

    def _tensors(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        listed: dict[str, GgufTensor] = {}
        for _ in range(count):
            tensor = _tensor(cursor)
            if tensor.name in listed:
                raise cursor.error(f"tensor {shown(tensor.name)} appears twice")
            listed[tensor.name] = tensor
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise cursor.error(f"general.alignment is {shown(alignment, 40)}, not a power of two")
        self._alignment = alignment
        start = _aligned(cursor.at, alignment)
        for name, t in listed.items():
            if t.offset % alignment:
                raise cursor.error(f"tensor {shown(name)} is not aligned to {alignment} bytes")
            listed[name] = replace(t, offset=start + t.offset)
        return listed

    def _check_layout(self, size: int) -> None:
        """Checks that tensors follow each other with only padding between them, up to the end of the file."""
        ordered = sorted(self.tensors.values(), key=lambda t: t.offset)
        for before, after in pairwise(ordered):
            end = before.offset + before.nbytes
            if end > after.offset:
                raise UserError(f"{self.path}: tensors {shown(before.name)} and {shown(after.name)} overlap")
            if after.offset != _aligned(end, self._alignment):
                gap = after.offset - end
                raise UserError(
                    f"{self.path}: {gap} bytes between {shown(before.name)} and {shown(after.name)}"
                )
        if not ordered:
            return
        end = ordered[-1].offset + ordered[-1].nbytes
        if size < end:
            raise UserError(f"{self.path}: truncated: {size} bytes, the tensors need {end}")
        # Some writers pad the last tensor, others do not.
        if size not in (end, _aligned(end, self._alignment)):
            raise UserError(f"{self.path}: {size - end} bytes after the last tensor, or truncated padding")

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        """Returns some rows of a tensor by its GGUF name, dequantised, in its row-major shape."""
        tensor = self.tensors[name].rows(rows)
        values = dequantise(tensor.file, tensor.type, math.prod(tensor.shape), tensor.offset, name)
        return finite(values, tensor.file, name).reshape(tensor.shape)

    def is_four_bits(self, name: str) -> bool:
        """Tells whether a tensor is a matrix, or a stack of them, on a grid of four bits."""
        tensor = self.tensors[name]
        return tensor.type.name in FOUR_BITS and len(tensor.shape) >= MATRIX_DIMS

    def read_int4(self, name: str, rows: slice = ALL) -> Int4:
        """Returns some rows of a tensor for which `is_four_bits` holds, without change; the matrices of a
        stack are one below the other."""
        tensor = self.tensors[name].rows(rows)
        data = read_array(tensor.file, "u1", tensor.nbytes, tensor.offset, name).astype(np.uint8, copy=False)
        try:
            return read_blocks(tensor.type.name, data, math.prod(tensor.shape[:-1]), tensor.type.bytes)
        except ValueError as error:
            raise UserError(
                f"{tensor.file}: tensor {shown(name)}: {error}: the weights are damaged"
            ) from error


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _tensor(cursor: _Cursor) -> GgufTensor:
    name = cursor.string("a tensor's name", MAX_NAME)
    told = shown(name)
    dims = cursor.integer("<I", MAX_DIMS, f"the number of dimensions of {told}")
    shape = tuple(cursor.integer("<Q", 1 << 40, f"a dimension of {told}") for _ in range(dims))[::-1]
    type_id = cursor.integer("<I", 1 << 31, f"the type of {told}")
    if type_id not in BLOCK_TYPES:
        known = ", ".join(t.name for t in BLOCK_TYPES.values())
        raise cursor.error(f"tensor {told} is {type_name(type_id)}, which is not read (read are {known})")
    if not shape or 0 in shape or shape[-1] % BLOCK_TYPES[type_id].elements:
        raise cursor.error(f"tensor {told} of {BLOCK_TYPES[type_id].name} has shape {list(shape)}")
    offset = cursor.integer("<Q", 1 << 60, f"the offset of {told}")
    return GgufTensor(name, type_id, shape, offset, cursor.path)
