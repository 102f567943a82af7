"""Instructions that move elements between partitions, or gather them by indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import GPSIMD, VECTOR, matched, record
from corepipe.nki.isa.operations import computed, stored, stored_bits

QUADRANT = 32
"""Partitions within which VectorE shuffles."""

UNMODIFIED = 255
"""The entry of a shuffle mask that leaves a partition as it is."""

CORE = 16
"""Partitions of one of GpSimd's eight cores."""


def nc_stream_shuffle(dst: View, src: View, shuffle_mask: Sequence[int]) -> Instruction:
    """Copies partition mask[i] to partition i in each group of 32; 255 leaves a partition as it is."""
    mask = [int(m) for m in shuffle_mask]
    if len(mask) != QUADRANT or any(m != UNMODIFIED and not 0 <= m < QUADRANT for m in mask):
        raise current().refuse("shuffle_mask", f"nc_stream_shuffle: {mask} is not 32 of 0 ... 31 or 255")
    if src.free != dst.free:
        raise current().refuse(
            "shape", f"nc_stream_shuffle: operands of shapes {src.shape} and {dst.shape} differ"
        )
    kept = UNMODIFIED in mask
    instruction = record("nc_stream_shuffle", VECTOR, (dst,), (src,), accumulates=kept, size=src)
    if current().values:
        _shuffle(dst, src, mask)
    return instruction


def _shuffle(dst: View, src: View, mask: Sequence[int]) -> None:
    values = src.array().reshape(src.partitions, -1).copy()
    for start in range(0, dst.partitions, QUADRANT):
        for i, m in enumerate(mask):
            if m != UNMODIFIED and start + i < dst.partitions and start + m < src.partitions:
                stored(values[start + m], dst[start + i : start + i + 1])


def nc_n_gather(dst: View, data: View, indices: View) -> Instruction:
    """Gathers elements of each partition by the indices in the same partition."""
    matched("nc_n_gather", dst, indices)
    instruction = record("nc_n_gather", GPSIMD, (dst,), (data, indices), size=dst)
    if current().values:
        x = stored_bits(data).reshape(data.partitions, -1)
        at = stored_bits(indices).reshape(indices.partitions, -1).astype(np.int64)
        _within("nc_n_gather", at, x.shape[1])
        stored(np.take_along_axis(x, at, axis=1), dst)
    return instruction


def local_gather(
    dst: View, src_buffer: View, index: View, num_elem_per_idx: int = 1, num_valid_indices: int | None = None
) -> Instruction:
    """Gathers runs of elements by indices that the 16 partitions of a GpSimd core share.

    The indices of a core are those of its partitions, column by column; each counts single elements.
    """
    cores = src_buffer.partitions // CORE
    count = num_valid_indices or index.free * CORE
    if src_buffer.partitions % CORE or index.partitions != src_buffer.partitions:
        raise current().refuse(
            "shape",
            f"local_gather: src_buffer and index have {src_buffer.partitions} and {index.partitions} "
            "partitions; they have the same number, a multiple of 16",
        )
    instruction = record("local_gather", GPSIMD, (dst,), (src_buffer, index), size=dst)
    if current().values:
        x = stored_bits(src_buffer).reshape(cores, CORE, -1)
        at = stored_bits(index).reshape(cores, CORE, -1).transpose(0, 2, 1).reshape(cores, -1)[:, :count]
        runs = at.astype(np.int64)[:, :, None] + np.arange(num_elem_per_idx)
        _within("local_gather", runs, x.shape[2])
        found = np.take_along_axis(x, runs.reshape(cores, 1, -1), axis=2)
        stored(found, dst)
    return instruction


def nonzero_with_count(dst: View, src: View, index_offset: int = 0, padding_val: int = -1) -> Instruction:
    """Writes the places of a partition's elements that are not 0, then padding, and their number at the end.

    Each GpSimd core does so for the first of its 16 partitions; the others stay as they are.
    """
    if dst.partitions != src.partitions or dst.free != src.free + 1:
        raise current().refuse(
            "shape",
            f"nonzero_with_count: dst {dst.shape} has not one element a partition more than {src.shape}",
        )
    instruction = record("nonzero_with_count", GPSIMD, (dst,), (src,), accumulates=True, size=src)
    if current().values:
        x = src.array().reshape(src.partitions, -1)
        for p in range(0, src.partitions, CORE):
            places = np.flatnonzero(x[p])
            row = np.full(dst.free, padding_val, np.int64)
            row[: len(places)], row[-1] = places + index_offset, len(places)
            stored(row, dst[p : p + 1])
    return instruction


def _within(op: str, indices: Array, count: int) -> None:
    """Raises KernelError for an index outside of its partition."""
    if indices.size and (indices.min() < 0 or indices.max() >= count):
        bad = indices.min() if indices.min() < 0 else indices.max()
        raise current().refuse("bounds", f"{op}: index {bad} is outside of the {count} elements")


def sequence_bounds(dst: View, segment_ids: View) -> Instruction:
    """Writes where the segment of each element starts and ends (the first after it); n and -1 for padding,
    which has the id 0."""
    n = segment_ids.free
    if segment_ids.partitions != 1 or dst.size != 2 * n:
        raise current().refuse(
            "shape", f"sequence_bounds: segment_ids are [1, N] and dst [1, 2, N], not {segment_ids.shape}"
        )
    instruction = record("sequence_bounds", GPSIMD, (dst,), (segment_ids,), size=segment_ids)
    if current().values:
        ids = computed(segment_ids).reshape(-1)
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        _, last = np.unique(ids[::-1], return_index=True)
        starts, ends, padding = first[which], n - last[which], ids == 0
        found = np.stack([np.where(padding, n, starts), np.where(padding, -1, ends)])
        stored(found.astype(np.float32), dst)
    return instruction
