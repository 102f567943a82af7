"""Instructions of VectorE that describe a partition: its mean and variance, and its largest elements."""

from __future__ import annotations

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import VECTOR, matched, record
from corepipe.nki.isa.operations import computed, stored

EIGHT = 8


def bn_stats(dst: View, data: View) -> Instruction:
    """Writes count, mean and count * variance of the even and of the odd elements of each partition."""
    _elements("bn_stats", "dst", dst, 6)
    instruction = record("bn_stats", VECTOR, (dst,), (data,), size=data)
    if current().values:
        x = computed(data).reshape(data.partitions, -1)
        found = [_moments(x[:, start::2]) for start in (0, 1)]
        stored(np.concatenate(found, axis=1), dst)
    return instruction


def _moments(x: Array) -> Array:
    count = x.shape[1]
    mean = x.mean(axis=1) if count else np.zeros(len(x), np.float32)
    squares = ((x - mean[:, None]) ** 2).sum(axis=1)
    return np.stack([np.full(len(x), count, np.float32), mean, squares], axis=1)


def bn_aggr(dst: View, data: View) -> Instruction:
    """Writes mean and variance of what several (count, mean, count * variance) describe together."""
    _elements("bn_aggr", "dst", dst, 2)
    instruction = record("bn_aggr", VECTOR, (dst,), (data,), size=data)
    if current().values:
        count, mean, squares = np.moveaxis(computed(data).reshape(data.partitions, -1, 3), 2, 0)
        total = count.sum(axis=1)
        joint = (count * mean).sum(axis=1) / total
        spread = squares.sum(axis=1) + (count * (mean - joint[:, None]) ** 2).sum(axis=1)
        stored(np.stack([joint, spread / total], axis=1), dst)
    return instruction


def max8(dst: View, src: View) -> Instruction:
    """Writes the 8 largest elements of each partition, the largest first."""
    _elements("max8", "dst", dst, EIGHT)
    instruction = record("max8", VECTOR, (dst,), (src,), size=src)
    if current().values:
        x = computed(src).reshape(src.partitions, -1)
        largest = np.partition(x, x.shape[1] - EIGHT, axis=1)[:, -EIGHT:]
        stored(np.sort(largest, axis=1)[:, ::-1], dst)
    return instruction


def nc_find_index8(dst: View, data: View, vals: View) -> Instruction:
    """Writes where each of 8 values first stands in its partition of data; all ones where it does not.

    A value that is given several times finds its places in ascending order.
    """
    _elements("nc_find_index8", "dst", dst, EIGHT)
    _elements("nc_find_index8", "vals", vals, EIGHT)
    instruction = record("nc_find_index8", VECTOR, (dst,), (data, vals), size=data)
    if current().values:
        places, _ = _found(data, vals, range(EIGHT))
        stored(_as_indices(places, dst), dst)
    return instruction


def nc_match_replace8(
    dst: View, data: View, vals: View, imm: float, dst_idx: View | None = None
) -> Instruction:
    """Copies data, where each of 8 values is replaced once by `imm`; dst_idx takes their places.

    A value that is given several times finds its places in descending order.
    """
    matched("nc_match_replace8", dst, data)
    _elements("nc_match_replace8", "vals", vals, EIGHT)
    writes = (dst,) if dst_idx is None else (dst, dst_idx)
    instruction = record("nc_match_replace8", VECTOR, writes, (data, vals), size=data)
    if current().values:
        places, taken = _found(data, vals, range(EIGHT - 1, -1, -1))
        x = computed(data).reshape(data.partitions, -1)
        stored(np.where(taken, np.float32(imm), x), dst)
        if dst_idx is not None:
            stored(_as_indices(places, dst_idx), dst_idx)
    return instruction


def _found(data: View, vals: View, order: range) -> tuple[Array, Array]:
    """Returns the place of each value, -1 where there is none, and which elements were taken."""
    x = computed(data).reshape(data.partitions, -1)
    wanted = computed(vals).reshape(vals.partitions, -1)
    places = np.full(wanted.shape, -1, np.int64)
    taken = np.zeros(x.shape, np.bool_)
    rows = np.arange(len(x))
    for column in order:
        matches = (x == wanted[:, column, None]) & ~taken
        there, first = matches.any(axis=1), matches.argmax(axis=1)
        places[there, column] = first[there]
        taken[rows[there], first[there]] = True
    return places, taken


def _as_indices(places: Array, dst: View) -> Array:
    """Returns places in the type of dst, -1 as all ones."""
    return places.astype(dst.dtype) if dst.dtype.kind in "iu" else places


def _elements(op: str, name: str, view: View, count: int) -> None:
    """Raises KernelError unless a partition of the operand has `count` elements."""
    if view.free != count:
        raise current().refuse(
            "shape", f"{op}: {name} of shape {view.shape} has {view.free} elements a partition, not {count}"
        )
