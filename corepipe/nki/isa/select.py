"""Instructions that make indices, and that select elements by them or by a predicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.base import (
    GPSIMD,
    VECTOR,
    Operand,
    ReduceCommand,
    a_partition,
    accumulated,
    matched,
    record,
    spread,
    views_of,
)
from corepipe.nki.isa.operations import BINARY, COMPARISONS, computed, operation, stored, stored_bits

LOWEST = float(np.finfo(np.float32).min)
"""The fill value of range_select: the lowest number of fp32."""

ONLY_MAXIMUM = {"maximum": np.maximum}
"""The reduction that instructions which select have."""

Pattern = Sequence[Sequence[int]]
"""[step, count] of each axis, the outermost first."""


def affine_values(partitions: int, pattern: Pattern, offset: int = 0, channel_multiplier: int = 0) -> Array:
    """Returns offset + partition * channel_multiplier + the steps of the pattern, [P, elements]."""
    found = offset + channel_multiplier * np.arange(partitions, dtype=np.int64)[:, None]
    for step, count in pattern:
        found = (found[:, :, None] + int(step) * np.arange(int(count))).reshape(partitions, -1)
    return found


def _count(op: str, pattern: Pattern, dst: View) -> None:
    """Raises KernelError unless a pattern has as many elements as a partition of dst."""
    count = int(np.prod([int(n) for _, n in pattern]))
    if count != dst.free:
        raise current().refuse(
            "shape", f"{op}: the pattern has {count} elements, a partition of dst {dst.free}"
        )


def iota(dst: View, pattern: Pattern, offset: int = 0, channel_multiplier: int = 0) -> Instruction:
    """Writes affine numbers of the position."""
    _count("iota", pattern, dst)
    instruction = record("iota", GPSIMD, (dst,), (), size=dst)
    if current().values:
        stored(affine_values(dst.partitions, pattern, offset, channel_multiplier), dst)
    return instruction


def affine_select(
    dst: View, predicate: Array | None, on_true_tile: View, on_false_value: float
) -> Instruction:
    """Copies elements where the predicate holds, and writes a number elsewhere.

    predicate: [P, elements], computed from the position; None where no values are computed.
    """
    matched("affine_select", dst, on_true_tile)
    instruction = record("affine_select", GPSIMD, (dst,), (on_true_tile,), size=dst)
    if current().values and predicate is not None:
        kept = np.asarray(predicate).reshape(on_true_tile.shape)
        stored(np.where(kept, computed(on_true_tile), np.float32(on_false_value)), dst)
    return instruction


def range_select(
    dst: View,
    on_true_tile: View,
    comp_op0: Any,
    comp_op1: Any,
    bound0: View,
    bound1: View,
    reduce_cmd: ReduceCommand = ReduceCommand.reset_reduce,
    reduce_res: View | None = None,
    reduce_op: Any = "maximum",
    range_start: int = 0,
    on_false_value: float = LOWEST,
) -> Instruction:
    """Keeps elements whose index in the partition is within bounds, and reduces the result to its maximum."""
    comparisons = [
        operation(op, COMPARISONS, place=f"range_select: comp_op{i}")
        for i, op in enumerate((comp_op0, comp_op1))
    ]
    operation(reduce_op, ONLY_MAXIMUM, place="range_select: reduce_op")
    matched("range_select", dst, on_true_tile)
    for i, bound in enumerate((bound0, bound1)):
        a_partition("range_select", f"bound{i}", bound, on_true_tile)
    instruction = record(
        "range_select",
        VECTOR,
        (dst, *views_of(reduce_res)),
        (on_true_tile, bound0, bound1),
        size=dst,
        details={"reduce": True},
    )
    values = None
    if current().values:
        index = (range_start + np.arange(on_true_tile.free)).astype(np.float32)[None, :]
        kept = np.ones((on_true_tile.partitions, on_true_tile.free), np.bool_)
        for name, bound in zip(comparisons, (bound0, bound1), strict=True):
            kept &= BINARY[name](index, spread(bound, 2)) != 0
        x = computed(on_true_tile).reshape(kept.shape)
        values = np.where(kept, x, np.float32(on_false_value))
        stored(values, dst)
    accumulated(Engine.VECTOR, values, "maximum", reduce_cmd, reduce_res)
    return instruction


def tensor_copy_predicated(
    dst: View, src: Operand, predicate: View, reverse_pred: bool = False
) -> Instruction:
    """Copies elements of src where the predicate is not 0; the others keep their values."""
    matched("tensor_copy_predicated", dst, predicate)
    if isinstance(src, View):
        matched("tensor_copy_predicated", dst, src)
    # What is not taken stays: the instruction needs what dst held before.
    instruction = record(
        "tensor_copy_predicated",
        VECTOR,
        (dst,),
        (*views_of(src), predicate),
        accumulates=True,
        size=dst,
    )
    if current().values:
        taken = _taken(predicate, reverse_pred).reshape(dst.shape)
        target, flags = dst.array(), dst.written()
        values = np.empty(dst.shape, np.float32) if isinstance(src, View) else np.full(dst.shape, src)
        if isinstance(src, View):
            values = (stored_bits(src) if src.dtype == dst.dtype else computed(src)).reshape(dst.shape)
        known = None if flags is None else flags | taken
        stored(np.where(taken, values.astype(target.dtype), target), dst)
        if known is not None and flags is not None:
            flags[...] = known
    return instruction


def select_reduce(
    dst: View,
    predicate: View,
    on_true: View,
    on_false: Operand,
    reduce_res: View | None = None,
    reduce_cmd: ReduceCommand = ReduceCommand.idle,
    reduce_op: Any = "maximum",
    reverse_pred: bool = False,
) -> Instruction:
    """Writes on_true where the predicate is not 0 and on_false elsewhere, and reduces it to its maximum."""
    operation(reduce_op, ONLY_MAXIMUM, place="select_reduce: reduce_op")
    matched("select_reduce", dst, predicate, on_true)
    a_partition("select_reduce", "on_false", on_false, on_true)
    reduces = reduce_res is not None or reduce_cmd is not ReduceCommand.idle
    instruction = record(
        "select_reduce",
        VECTOR,
        (dst, *views_of(reduce_res)),
        (on_true, predicate, *views_of(on_false)),
        size=dst,
        details={"reduce": reduces},
    )
    values = None
    if current().values:
        taken = _taken(predicate, reverse_pred).reshape(on_true.shape)
        values = np.where(taken, computed(on_true), spread(on_false, on_true.ndim))
        stored(values, dst)
    if reduces:
        accumulated(Engine.VECTOR, values, "maximum", reduce_cmd, reduce_res)
    return instruction


def _taken(predicate: View, reverse: bool) -> Array:
    found: Array = stored_bits(predicate) != 0
    return ~found if reverse else found
