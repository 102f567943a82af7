"""The index of a file of packed weights, and its checks before a kernel may read the file.

The kernels trust sizes and offsets.  So a file is accepted only if its index is complete, describes every
weight as the Graph expects it, and points at nothing outside the file; and if the content has the checksums
of the index.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import msgspec

from corepipe.kernels import packing
from corepipe.kernels.packing import Kind
from corepipe.neuron.formats import DType, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.values import WeightRole, WeightSpec

MAGIC = b"corepipe-packed\n"
HEAD_BYTES = len(MAGIC) + 8 + 4
"""Magic, length of the index, CRC-32 of the index; the index follows, in JSON."""
ALIGNMENT = 2 * 1024 * 1024
"""Offset of the first tensor: one huge page.  Tensors after it start at multiples of `TENSOR_ALIGNMENT`."""
TENSOR_ALIGNMENT = 4096


class ByteRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of bytes of the file."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class PackedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor as stored; `crc` is the CRC-32 of its data and, after it, its scale."""

    kind: Kind
    shape: tuple[int, ...]
    data: ByteRange
    scale: ByteRange | None
    crc: int


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The index of a file: its size `nbytes`, the offset `lookups` from which on it holds embedding tables,
    and the name of its `model`."""

    nbytes: int
    lookups: int
    tensors: dict[str, PackedEntry]
    model: str = ""


def encode(index: Index) -> bytes:
    """Returns the head of a file, which `decode` reads."""
    body = msgspec.json.encode(index)
    return MAGIC + len(body).to_bytes(8, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def decode(head: bytes, nbytes: int, graph: Graph) -> Index:
    """Returns the index of a file of `nbytes` that starts with `head` (`ALIGNMENT` bytes of it).

    Raises ValueError for a file that is not `graph` packed, or not all of it.
    """
    index = read(head, nbytes)
    _check(index, graph)
    return index


def read(head: bytes, nbytes: int) -> Index:
    """Returns the index of any file of packed weights; otherwise as `decode`."""
    if head[: len(MAGIC)] != MAGIC:
        raise ValueError("it is not a file of packed weights")
    length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 8], "little")
    body = head[HEAD_BYTES : HEAD_BYTES + length]
    if len(body) != length or zlib.crc32(body) != int.from_bytes(head[HEAD_BYTES - 4 : HEAD_BYTES], "little"):
        raise ValueError("the checksum of its index is wrong")
    index = msgspec.json.decode(body, type=Index)
    if index.nbytes != nbytes:
        raise ValueError(f"it has {nbytes} bytes, not {index.nbytes}")
    return index


def expected(spec: WeightSpec, format: Format) -> tuple[tuple[Kind, int, int], ...]:  # noqa: A002
    """Returns the ways to store a weight in a format: kinds, with the bytes of their data and of their scale.

    For four-bit formats a matrix may be stored as its checkpoint has it; otherwise there is one way.
    """
    if spec.role is not WeightRole.MATRIX:
        kind: Kind = "fp32" if spec.role is WeightRole.VECTOR or format.compute is DType.FP32 else "bf16"
        return ((kind, math.prod(spec.shape) * (4 if kind == "fp32" else 2), 0),)
    *stack, n, k = spec.shape
    count = math.prod(stack)
    if format.weights is DType.INT4:
        four_bits = ((kind, count * packing.packed_bytes(kind, n, k), 0) for kind in packing.INT4_KINDS)
        return (("int8", count * packing.packed_bytes("int8", n, k), 4 * count * n), *four_bits)
    if format.weights is DType.INT8:
        kind = "int8" if format.activations is DType.INT8 else "int8w"
    else:
        kind = "fp32" if format.weights is DType.FP32 else "bf16"
    scale = 4 * count * n if format.weights is DType.INT8 else 0
    return ((kind, count * packing.packed_bytes(kind, n, k), scale),)


def weights_size(graph: Graph) -> int:
    """Returns the bytes of all weights of a graph as they are stored, without padding for alignment.

    Where the checkpoint decides (see `expected`) the smallest: a model that might fit is not refused.
    """
    return sum(min(sum(way[1:]) for way in expected(spec, graph.format)) for spec in graph.weights())


def _check(index: Index, graph: Graph) -> None:
    specs = {spec.name: spec for spec in graph.weights()}
    if index.tensors.keys() != specs.keys():
        raise ValueError("it holds other weights than those of the model")
    for name, entry in index.tensors.items():
        found = (entry.kind, entry.shape, entry.data.nbytes, entry.scale.nbytes if entry.scale else 0)
        known = expected(specs[name], graph.format)
        if found not in [(kind, tuple(specs[name].shape), data, scale) for kind, data, scale in known]:
            raise ValueError(f"{name} is stored as {found}")
        for part in parts(entry):
            if part.offset < ALIGNMENT or part.offset % TENSOR_ALIGNMENT or part.end > index.nbytes:
                raise ValueError(f"{name} has the invalid offset {part.offset}")
    if not 0 <= index.lookups <= index.nbytes:
        raise ValueError(f"its embedding tables have the invalid offset {index.lookups}")


def parts(entry: PackedEntry) -> Iterator[ByteRange]:
    """Yields the ranges of an entry: its data and, if it has one, its scale."""
    yield entry.data
    if entry.scale is not None:
        yield entry.scale
