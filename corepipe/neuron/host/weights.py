"""Weights packed once for the native kernels, cached on disk, mapped by every process that runs them.

One file holds a whole model in one format, whatever the placement: a core's shard is a view of whole panels.
Layout: the index (`packed_index`), then the tensors, each at a multiple of `TENSOR_ALIGNMENT` bytes,
embedding tables last.  The file appears under its name only when it is complete; later damage is detected,
and the file is packed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from corepipe.errors import DISK_FULL, UserError, check_room, no_room
from corepipe.kernels import packing
from corepipe.kernels.packing import Kind
from corepipe.neuron.formats import Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.host import blocks, huge_pages, packed_index, packed_int4
from corepipe.neuron.host.blocks import TensorSource
from corepipe.neuron.host.packed_index import ALIGNMENT, TENSOR_ALIGNMENT, ByteRange, Index, PackedEntry
from corepipe.neuron.numerics.int4 import Int4, Int8, Stored, as_stored, matrices_of
from corepipe.neuron.values import WeightRole, WeightSpec

LAYOUT_VERSION = 3
PARTIAL = ".packing-"
"""Prefix of the names of files that are being written."""
SHARED_MODE = 0o644
"""File mode for other users' processes, which map the same file; temporary files are readable by their owner
only."""

ReadTensor = Callable[[str], Stored]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One weight as stored.  `kind` is the native Matrix kind, or "fp32"/"bf16" rows for the others."""

    kind: Kind
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32] | None

    def rows(self) -> npt.NDArray[Any]:
        """Returns a vector or an embedding table: fp32, or bf16 as uint16, in `shape`."""
        return self.data.view(np.float32 if self.kind == "fp32" else np.uint16).reshape(self.shape)

    def matrices(self) -> Iterator[PackedTensor]:
        """Yields each matrix of a stack [count, N, K]."""
        count, *shape = self.shape
        scales = [None] * count if self.scale is None else self.scale.reshape(count, -1)
        for data, scale in zip(self.data.reshape(count, -1), scales, strict=True):
            yield PackedTensor(self.kind, tuple(shape), data, scale)


class PackedWeights:
    """The tensors of one packed file, mapped read-only, and shared where the mapping has huge pages.

    Raises UserError for a file that cannot be read, ValueError for one that is damaged or not of `graph`.
    """

    def __init__(self, path: Path, graph: Graph) -> None:
        try:
            with path.open("rb") as file:
                _hold(file)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._index = packed_index.decode(self._map[:ALIGNMENT], len(self._map), graph)
                self._streamed = huge_pages.read(file, self._map, self._index.lookups)
        except OSError as error:
            raise UserError(f"cannot read packed weights: {path}: {error.strerror}") from error
        self.path = path
        self._check_content()

    @property
    def digest(self) -> str:
        """16 hex digits that identify the whole content, by its checksums."""
        tensors = sorted(self._index.tensors.items())
        contents = [(name, each.kind, each.shape, each.crc) for name, each in tensors]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]

    def __getitem__(self, name: str) -> PackedTensor:
        entry = self._index.tensors[name]
        scale = None if entry.scale is None else self._bytes(entry.scale).view(np.float32)
        return PackedTensor(entry.kind, entry.shape, self._bytes(entry.data), scale)

    def _bytes(self, part: ByteRange) -> npt.NDArray[np.uint8]:
        if part.end <= len(self._streamed):
            return self._streamed[part.offset : part.end]
        return np.frombuffer(self._map, np.uint8, part.nbytes, part.offset)

    def _check_content(self) -> None:
        """Checks the checksums.  CRC-32 runs at some 4 GB/s: less time than reading the weights from a
        disk."""
        for name, entry in self._index.tensors.items():
            if _crc(self._bytes(part) for part in packed_index.parts(entry)) != entry.crc:
                raise ValueError(f"the checksum of {name} is wrong")
        # A step looks up a few rows of the tables: the pages that the check has read need not stay.
        begin = self._index.lookups // mmap.PAGESIZE * mmap.PAGESIZE
        if begin < len(self._map):
            huge_pages.forget_mapped(self._map, begin, len(self._map) - begin)


def _hold(file: IO[bytes]) -> None:
    """Marks a packed file as just used, and as in use while it is mapped: a mapping keeps its file open."""
    with contextlib.suppress(OSError):  # another user's file, or a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(file.fileno())


def _crc(parts: Iterable[npt.NDArray[Any]]) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(part.data, crc)
    return crc


def packed_weights(
    graph: Graph, checkpoint: TensorSource, cache: Path, progress: Progress | None = None, threads: int = 1
) -> PackedWeights:
    """Returns the packed weights of `graph`, from the cache, or packed into it now on so many threads.

    A damaged file is replaced; processes that have mapped it keep it.  Raises UserError where the cache
    cannot be written or read.
    """
    path = cache / f"{_key(graph, checkpoint)}.packed"
    report = progress or (lambda _what, _done: None)
    _remove_leftovers(cache)
    if path.exists():
        try:
            return PackedWeights(path, graph)
        except ValueError as error:
            report(f"packed weights are damaged and are packed again: {path} ({error})", 0.0)
    try:
        _pack_file(graph, checkpoint, path, report, threads)
        return PackedWeights(path, graph)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise no_room(f"packed weights of {graph.name}", cache, _room(graph), error.errno) from error
        raise UserError(
            f"cannot write packed weights to {path}: {error.strerror}; set COREPIPE_CACHE"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} was damaged as soon as it was written ({error}): check the disk") from error


def _key(graph: Graph, checkpoint: TensorSource) -> str:
    specs = [(s.name, s.shape, s.role.value, graph.tied.get(s.name)) for s in graph.weights()]
    text = json.dumps([LAYOUT_VERSION, checkpoint.fingerprint, graph.format.name, specs])
    return f"{graph.format.name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _pack_file(graph: Graph, checkpoint: TensorSource, path: Path, progress: Progress, threads: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    check_room(f"packed weights of {graph.name}", path.parent, _room(graph))
    with _partial_file(path.parent) as file:
        try:
            _write_tensors(graph, checkpoint, file, progress, threads)
            file.flush()
            os.fsync(file.fileno())  # the name must not reach the disk before the content
            huge_pages.forget_written(file)
            os.fchmod(file.fileno(), SHARED_MODE)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _room(graph: Graph) -> int:
    """Returns the bytes of the file of packed weights."""
    ways = (packed_index.expected(spec, graph.format) for spec in graph.weights())
    return ALIGNMENT + sum(max(map(_room_of, way)) for way in ways)


def _room_of(stored: tuple[Kind, int, int]) -> int:
    """Returns the aligned bytes of a weight's data and scale."""
    return sum(-(-size // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT for size in stored[1:])


def _partial_file(folder: Path) -> IO[bytes]:
    """Opens a new file, locked while it is open: an unlocked one was left by a process that was killed."""
    while True:
        file: IO[bytes] = tempfile.NamedTemporaryFile(dir=folder, prefix=PARTIAL, delete=False)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process removed it as a leftover before it was locked


def _remove_leftovers(folder: Path) -> None:
    """Removes the files that killed processes have left; they may be as large as a model."""
    for path in folder.glob(f"{PARTIAL}*"):
        # Another process may remove it at the same time or be writing it, or another user owns it.
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _write_tensors(
    graph: Graph, checkpoint: TensorSource, file: IO[bytes], progress: Progress, threads: int
) -> None:
    specs = sorted(graph.weights(), key=lambda spec: spec.role is WeightRole.EMBEDDING)
    tensors: dict[str, PackedEntry] = {}
    tasks = (
        partial(_pack_block, spec, graph.format, read_block)
        for spec in specs
        for read_block in blocks.readers(checkpoint, graph, spec)
    )
    file.seek(ALIGNMENT)
    blocks.keep_freed_memory()
    with contextlib.closing(blocks.in_order(tasks, threads)) as packed:
        for i, spec in enumerate(specs):
            progress("packing weights", i / len(specs))
            tensors[spec.name] = _append(file, spec, islice(packed, len(blocks.blocks_of(spec))))
    nbytes = file.seek(0, os.SEEK_END)
    tables = [tensors[spec.name].data.offset for spec in specs if spec.role is WeightRole.EMBEDDING]
    head = packed_index.encode(Index(nbytes, min(tables, default=nbytes), tensors, graph.name))
    if len(head) > ALIGNMENT:
        raise UserError(f"{graph.name}: {len(specs)} weights are more than a packed file can index")
    file.seek(0)
    file.write(head)


def reader(graph: Graph, checkpoint: TensorSource) -> ReadTensor:
    """Returns a function that reads the checkpoint's weight for a name of `graph`."""
    specs = {spec.name: spec for spec in graph.weights()}
    return lambda name: blocks.read(checkpoint, graph, specs[name])


def _append(file: IO[bytes], spec: WeightSpec, packed: Iterable[PackedTensor]) -> PackedEntry:
    """Writes the blocks of a weight at the end of the file, and after them their scales."""
    kinds: set[Kind] = set()
    scales: list[npt.NDArray[np.float32]] = []
    begin, crc = _seek_aligned(file), 0
    for block in packed:
        kinds.add(block.kind)
        crc = _write(file, block.data, crc)
        scales += () if block.scale is None else (block.scale,)
    data, scale = ByteRange(begin, file.tell() - begin), None
    if scales:
        joined = np.concatenate(scales)
        scale = ByteRange(_seek_aligned(file), joined.nbytes)
        crc = _write(file, joined, crc)
    (kind,) = kinds
    return PackedEntry(kind, spec.shape, data, scale, crc)


def _write(file: IO[bytes], data: npt.NDArray[Any], crc: int) -> int:
    """Writes data and returns the checksum, continued from `crc`."""
    file.write(data.data)
    return zlib.crc32(data.data, crc)


def _seek_aligned(file: IO[bytes]) -> int:
    """Moves to the offset of the next tensor and returns it."""
    end = -(-file.tell() // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    return file.seek(end)


def _pack_block(spec: WeightSpec, format: Format, read: blocks.Read) -> PackedTensor:  # noqa: A002
    return pack(spec, format, read())


def pack(spec: WeightSpec, format: Format, weight: Stored) -> PackedTensor:  # noqa: A002
    """Converts a weight ([N, K] for a matrix), or some of its panels, and lays it out for the kernels of
    `format`; of a stack some matrices, one after the other."""
    weight = as_stored(spec, format, weight)
    if spec.is_stack:
        return _pack_stack(spec, format, weight)
    if isinstance(weight, Int4):
        return PackedTensor(packed_int4.kind_of(weight), weight.values.shape, packed_int4.pack(weight), None)
    kind: Kind = packed_index.expected(spec, format)[0][0]
    if isinstance(weight, Int8):
        return PackedTensor(kind, weight.values.shape, packing.pack(kind, weight.values), weight.scale)
    if spec.role is not WeightRole.MATRIX:
        rows = weight.astype(np.float32) if kind == "fp32" else packing.to_bf16(weight)
        return PackedTensor(kind, weight.shape, _as_bytes(rows), None)
    return PackedTensor(kind, weight.shape, packing.pack(kind, weight), None)


def _pack_stack(spec: WeightSpec, format: Format, weight: Stored) -> PackedTensor:  # noqa: A002
    count = len(weight) if isinstance(weight, np.ndarray) else len(weight.values) // spec.shape[1]
    one = replace(spec, axes=spec.axes[1:])
    parts = [pack(one, format, part) for part in matrices_of(weight, count)]
    scales = [part.scale for part in parts if part.scale is not None]
    data = np.concatenate([part.data for part in parts])
    shape = (count, *parts[0].shape)
    return PackedTensor(parts[0].kind, shape, data, np.concatenate(scales) if scales else None)


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


class InMemoryWeights:
    """Packs weights on demand and writes nothing: for small graphs and tests."""

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
