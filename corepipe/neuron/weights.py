"""Weights packed once for the native kernels, cached on disk, mapped by every process that runs them.

One file holds a whole model in one format, whatever the placement: a core's shard is a view of whole
panels.  Layout: magic, 8-byte little-endian length of a JSON index, the index, then the tensors, each at a
multiple of `TENSOR_ALIGNMENT` bytes, embedding tables last.  The file appears under its name only when it
is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError
from corepipe.kernels import packing
from corepipe.kernels.packing import Kind
from corepipe.neuron import huge_pages
from corepipe.neuron.graph import DType, Format, Graph, WeightRole, WeightSpec
from corepipe.neuron.numerics import quantize_weight

MAGIC = b"corepipe-packed\n"
LAYOUT_VERSION = 2
ALIGNMENT = 2 * 1024 * 1024
"""Offset of the first tensor: one huge page.  Tensors after it start at multiples of `TENSOR_ALIGNMENT`."""
TENSOR_ALIGNMENT = 4096
PARTIAL = ".packing-"
"""Names of files that are being written begin so."""
SHARED_MODE = 0o644
"""Other users' processes map the same file; temporary files are their maker's alone."""

ReadTensor = Callable[[str], npt.NDArray[np.float32]]
Progress = Callable[[str, float], None]


class Checkpoint(Protocol):
    """What a model's files offer: tensors by name, and a fingerprint that changes with their content."""

    @property
    def fingerprint(self) -> str: ...

    def read(self, name: str) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One weight as stored.  `kind` is the native Matrix kind, or "fp32"/"bf16" rows for the others."""

    kind: Kind
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32] | None

    def rows(self) -> npt.NDArray[Any]:
        """A vector or an embedding table: fp32, or bf16 as uint16, in `shape`."""
        return self.data.view(np.float32 if self.kind == "fp32" else np.uint16).reshape(self.shape)


class PackedWeights:
    """The tensors of one packed file, mapped read-only and shared where that gives huge pages.

    Raises UserError for a file that cannot be read, or is not what was written.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._index = _read_index(self._map)
                lookups = [entry["offset"] for entry in self._index.values() if entry["lookup"]]
                self._streamed = huge_pages.read(file, self._map, min(lookups, default=len(self._map)))
        except OSError as error:
            raise UserError(f"cannot read packed weights: {path}: {error.strerror}") from error
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); delete it, it will be made anew") from error
        self.path = path

    def __getitem__(self, name: str) -> PackedTensor:
        entry = self._index[name]
        scale = entry.get("scale")
        return PackedTensor(
            entry["kind"],
            tuple(entry["shape"]),
            self._bytes(entry["offset"], entry["nbytes"]),
            None if scale is None else self._bytes(*scale).view(np.float32),
        )

    def _bytes(self, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        if offset + nbytes <= len(self._streamed):
            return self._streamed[offset : offset + nbytes]
        return np.frombuffer(self._map, np.uint8, nbytes, offset)


def _read_index(mapping: mmap.mmap) -> dict[str, dict[str, Any]]:
    """Raises ValueError for what is no packed file, or not all of it."""
    start = len(MAGIC) + 8
    if mapping[: len(MAGIC)] != MAGIC:
        raise ValueError("no packed weights")
    length = int.from_bytes(mapping[len(MAGIC) : start], "little")
    index: dict[str, dict[str, Any]] = json.loads(mapping[start : start + length])
    parts = [part for e in index.values() for part in ((e["offset"], e["nbytes"]), e.get("scale", (0, 0)))]
    if max(offset + nbytes for offset, nbytes in parts) > len(mapping):
        raise ValueError("its end is missing")
    return index


def packed_weights(
    graph: Graph, checkpoint: Checkpoint, cache: Path, progress: Progress | None = None
) -> PackedWeights:
    """The packed weights of `graph`, from the cache, or packed into it now.

    Raises UserError where the cache cannot be written or read, or holds a damaged file.
    """
    path = cache / f"{_key(graph, checkpoint)}.packed"
    if not path.exists():
        try:
            _pack_file(graph, checkpoint, path, progress or (lambda _what, _done: None))
        except OSError as error:
            raise UserError(
                f"cannot write packed weights to {path}: {error.strerror}; set COREPIPE_CACHE"
            ) from error
    return PackedWeights(path)


def _key(graph: Graph, checkpoint: Checkpoint) -> str:
    specs = [(s.name, s.shape, s.role.value, graph.tied.get(s.name)) for s in graph.weights()]
    text = json.dumps([LAYOUT_VERSION, checkpoint.fingerprint, graph.format.name, specs])
    return f"{graph.format.name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _pack_file(graph: Graph, checkpoint: Checkpoint, path: Path, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path.parent)
    with _partial_file(path.parent) as file:
        try:
            _write_tensors(graph, checkpoint, file, progress)
            file.flush()
            os.fsync(file.fileno())  # the name must not reach the disk before the content
            huge_pages.forget_written(file)
            os.fchmod(file.fileno(), SHARED_MODE)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _partial_file(folder: Path) -> IO[bytes]:
    """A new file, locked while it is open: one that is not locked was left by a process that was killed."""
    while True:
        file: IO[bytes] = tempfile.NamedTemporaryFile(dir=folder, prefix=PARTIAL, delete=False)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # somebody took it for a leftover before it was locked


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{PARTIAL}*"):
        # Another process may remove it at the same time, or be writing it.
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _write_tensors(graph: Graph, checkpoint: Checkpoint, file: IO[bytes], progress: Progress) -> None:
    specs = sorted(graph.weights(), key=lambda spec: spec.role is WeightRole.EMBEDDING)
    index: dict[str, dict[str, Any]] = {}
    file.seek(ALIGNMENT)
    for i, spec in enumerate(specs):
        progress("packing weights", i / len(specs))
        tensor = pack(spec, graph.format, checkpoint.read(graph.tied.get(spec.name, spec.name)))
        entry: dict[str, Any] = {
            "kind": tensor.kind,
            "lookup": spec.role is WeightRole.EMBEDDING,
            "shape": tensor.shape,
            "offset": _append(file, tensor.data),
        }
        entry["nbytes"] = tensor.data.nbytes
        if tensor.scale is not None:
            entry["scale"] = [_append(file, tensor.scale), tensor.scale.nbytes]
        index[spec.name] = entry
    head = json.dumps(index).encode()
    if len(MAGIC) + 8 + len(head) > ALIGNMENT:
        raise UserError(f"{graph.name}: {len(specs)} weights are more than a packed file can index")
    file.seek(0)
    file.write(MAGIC + len(head).to_bytes(8, "little") + head)


def _append(file: IO[bytes], data: npt.NDArray[Any]) -> int:
    """Writes at the end, aligned; returns the offset."""
    offset = -(-file.seek(0, os.SEEK_END) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    offset = max(offset, ALIGNMENT)
    file.seek(offset)
    file.write(data.tobytes())
    return offset


def pack(spec: WeightSpec, format: Format, weight: npt.NDArray[np.float32]) -> PackedTensor:  # noqa: A002
    """Converts and lays out one weight ([N, K] for a matrix) as the kernels of `format` want it."""
    if spec.role is WeightRole.MATRIX:
        return _pack_matrix(format, weight)
    if spec.role is WeightRole.VECTOR or format.compute is DType.FP32:
        return PackedTensor("fp32", spec.shape, _as_bytes(weight.astype(np.float32)), None)
    return PackedTensor("bf16", spec.shape, _as_bytes(packing.to_bf16(weight)), None)


def _pack_matrix(format: Format, weight: npt.NDArray[np.float32]) -> PackedTensor:  # noqa: A002
    if format.weights is not DType.INT8:
        dense: Kind = "fp32" if format.weights is DType.FP32 else "bf16"
        return PackedTensor(dense, weight.shape, packing.pack(dense, weight), None)
    kind: Kind = "int8" if format.activations is DType.INT8 else "int8w"
    quantized, scale = quantize_weight(weight)
    return PackedTensor(kind, weight.shape, packing.pack(kind, quantized), scale)


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


class InMemoryWeights:
    """Packs on demand and writes nothing: for small graphs and tests."""

    def __init__(self, graph: Graph, read: ReadTensor) -> None:
        self._graph = graph
        self._read = read
        self._specs = {spec.name: spec for spec in graph.weights()}
        self._packed: dict[str, PackedTensor] = {}

    def __getitem__(self, name: str) -> PackedTensor:
        if name not in self._packed:
            weight = self._read(self._graph.tied.get(name, name))
            self._packed[name] = pack(self._specs[name], self._graph.format, weight)
        return self._packed[name]
