"""Safetensors, one file or several with an index; headers are checked before anything is allocated.

The format (https://huggingface.co/docs/safetensors): 8 bytes of little-endian header length, a JSON header of
{name: {dtype, shape, data_offsets}} in UTF-8, then the data, without gaps. `__metadata__` is an object of
texts, which is not read here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import (
    StoredAs,
    fingerprint,
    finite,
    missing,
    placed,
    read_array,
    widen_bf16,
)
from corepipe.models.checkpoints.files import regular_size, unreadable
from corepipe.models.fields import read_json
from corepipe.neuron.numerics.int4 import ALL, Stored

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own library."""
MAX_TENSORS = 1 << 18
"""The most tensors in a file; the largest public checkpoints have about 92,000 in all files (DeepSeek-V3)."""
MAX_NAME = 1024
MAX_SHARDS = 4096
DTYPES = {"F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2)}
RAW = {"F8_E4M3": "u1", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8"}
"""Types of quantised weights and of the tensors that belong to them."""
OTHER_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
BYTES = {**{name: size for name, (_, size) in DTYPES.items()}, **OTHER_BYTES, "F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's type, shape and place; `offset` counts from the start of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


class SafetensorsCheckpoint:
    """A directory with model.safetensors(.index.json), or a single .safetensors file."""

    stored_as = StoredAs()

    def __init__(self, path: Path) -> None:
        self.path = path
        files, owners = _files(path)
        headers = [(file, *read_header(file)) for file in files]
        self._entries: dict[str, TensorEntry] = {}
        for file, _, entries in headers:
            for name, entry in entries.items():
                if name in self._entries:
                    raise UserError(
                        f"{file}: tensor {shown(name)} is also in {self._entries[name].file.name}"
                    )
                self._entries[name] = entry
        _check_owners(path, owners, self._entries)
        self.fingerprint = fingerprint((file, header) for file, header, _ in headers)

    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a readable tensor; raises UserError for other types."""
        entry = self._entry(name)
        if entry.dtype not in DTYPES:
            raise UserError(
                f"{entry.file}: tensor {shown(name)} is {entry.dtype}; known: {', '.join(DTYPES)}"
            )
        return entry.shape

    def has(self, name: str) -> bool:
        return name in self._entries

    def dtype(self, name: str) -> str:
        """Returns the type as the format spells it."""
        return self._entry(name).dtype

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor of any type."""
        return self._entry(name).shape

    def raw(self, name: str, start: int, end: int) -> npt.NDArray[np.generic]:
        """Returns some rows of a tensor of integers, or of fp8 as bytes; raises UserError for other types."""
        entry = self._entry(name)
        if entry.dtype not in RAW:
            raise UserError(
                f"{entry.file}: tensor {shown(name)} is {entry.dtype}, not one of {', '.join(RAW)}"
            )
        width = math.prod(entry.shape[1:])
        offset = entry.offset + start * width * BYTES[entry.dtype]
        rows = read_array(entry.file, RAW[entry.dtype], (end - start) * width, offset, name)
        return rows.reshape(end - start, *entry.shape[1:]) if entry.shape else rows

    def file(self, name: str) -> Path:
        return self._entry(name).file

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        """Returns rows of F32, F16 or BF16 as fp32."""
        entry = self._entry(name)
        before, shape = placed(self.shape(name), rows)
        dtype, size = DTYPES[entry.dtype]
        data = read_array(entry.file, dtype, math.prod(shape), entry.offset + before * size, name)
        wide = widen_bf16(data) if entry.dtype == "BF16" else data.astype(np.float32, copy=False)
        return finite(wide, entry.file, name).reshape(shape)

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        return self.read(name, rows)

    def by_rows(self, name: str) -> bool:  # noqa: ARG002 -- the protocol's parameter; rows are contiguous
        return True

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._entries:
            raise missing(self.path, name)
        return self._entries[name]


def _files(path: Path) -> tuple[list[Path], dict[str, str]]:
    """Returns the files of a checkpoint, and the file of each tensor by the index."""
    if path.is_file():
        return [path], {}
    index, whole = path / INDEX, path / "model.safetensors"
    if whole.is_file():  # as in transformers: an index beside it belongs to an earlier state
        return [whole], {}
    if index.is_file():
        owners = _read_index(index)
        return [path / name for name in sorted(set(owners.values()))], owners
    found = sorted(path.glob("*.safetensors"))
    if len(found) != 1:
        raise UserError(f"{path}: holds {len(found)} .safetensors files and no {INDEX}")
    return found, {}


def _read_index(index: Path) -> dict[str, str]:
    owners = read_json(index).get("weight_map")
    if not isinstance(owners, dict) or not owners:
        raise UserError(f"{index}: weight_map is missing")
    for name, file in owners.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise UserError(
                f"{index}: tensor {shown(name)} points at {shown(file)}, not at a .safetensors file beside it"
            )
    if len(set(owners.values())) > MAX_SHARDS:
        raise UserError(f"{index}: names more than {MAX_SHARDS} files")
    for file in sorted(set(owners.values())):
        if not (index.parent / file).is_file():
            raise UserError(f"{index}: {shown(file)} is missing")
    return owners


def _check_owners(path: Path, owners: dict[str, str], entries: dict[str, TensorEntry]) -> None:
    for name, file in owners.items():
        if name not in entries or entries[name].file.name != file:
            raise UserError(f"{path / file}: tensor {shown(name)} is missing, though {INDEX} places it here")


def read_header(file: Path) -> tuple[bytes, dict[str, TensorEntry]]:
    """Reads the header's bytes and the tensors it lists; raises UserError for anything inconsistent."""
    size = regular_size(file)
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise UserError(
                    f"{file}: not a safetensors file: header of {length} bytes in a file of {size}"
                )
            header = stream.read(length)
    except OSError as error:
        raise unreadable(file, error) from error
    if len(header) != length:
        raise UserError(f"{file}: truncated: a header of {length} bytes ends after {len(header)}")
    listed = _parse(file, header)
    entries = {name: _entry(file, name, value, 8 + length) for name, value in listed.items()}
    _check_layout(file, entries, 8 + length, size)
    return header, entries


def _parse(file: Path, header: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        merged = dict(pairs)
        if len(merged) != len(pairs):
            raise ValueError("a key appears twice")
        return merged

    try:
        # As text: given bytes, json would take UTF-16 and UTF-32 as well.
        listed = json.loads(header.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: the header is not valid JSON: {error}") from error
    if not isinstance(listed, dict):
        raise UserError(f"{file}: the header must be a JSON object")
    metadata = listed.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise UserError(f"{file}: __metadata__ must be an object of texts")
    if len(listed) > MAX_TENSORS:
        raise UserError(f"{file}: lists {len(listed)} tensors, more than {MAX_TENSORS}")
    return listed


def _entry(file: Path, name: str, value: object, data_start: int) -> TensorEntry:
    if len(name) > MAX_NAME:
        raise UserError(
            f"{file}: tensor {shown(name)} has a name of {len(name)} characters, more than {MAX_NAME}"
        )
    if not isinstance(value, dict):
        raise UserError(f"{file}: tensor {shown(name)} is not described by an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise UserError(
            f"{file}: tensor {shown(name)} has dtype {shown(repr(dtype), 40)}; known: {', '.join(DTYPES)}"
        )
    if not _naturals(shape) or len(shape) > 8:
        raise UserError(f"{file}: tensor {shown(name)} has shape {shown(shape)}")
    if not _naturals(offsets) or len(offsets) != 2:
        raise UserError(f"{file}: tensor {shown(name)} has data_offsets {shown(offsets)}")
    if offsets[1] - offsets[0] != math.prod(shape) * BYTES[dtype]:
        raise UserError(
            f"{file}: tensor {shown(name)} of shape {shape} and dtype {dtype} needs "
            f"{math.prod(shape) * BYTES[dtype]} bytes, its offsets span {offsets[1] - offsets[0]}"
        )
    return TensorEntry(file, dtype, tuple(shape), data_start + offsets[0])


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _check_layout(file: Path, entries: dict[str, TensorEntry], start: int, size: int) -> None:
    """Checks that tensors follow each other without gap or overlap, up to the end of the file."""
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, math.prod(item[1].shape))):
        if entry.offset != at:
            raise UserError(f"{file}: tensor {shown(name)} starts at byte {entry.offset}, expected {at}")
        at += math.prod(entry.shape) * BYTES[entry.dtype]
    if at > size:
        raise UserError(f"{file}: truncated: {size} bytes, the header asks for {at}")
    if at < size:
        raise UserError(f"{file}: {size - at} bytes after the last tensor")
