"""Placement of the parts of a model: layers in stages, heads and columns on tensor ranks, experts on
cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from math import ceil

from corepipe.errors import UserError
from corepipe.neuron.axes import PAD, Axis, AxisKind, AxisShard, HeadLayout

EVEN_UNITS = (64, 32, 16, 8)
"""Units of columns where no group of int8 activations needs to stay whole."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`data` replicas, each cut into `pipeline` stages of `tensor` cores, or of `expert` cores where that is
    more.

    expert: cores of a stage that each hold some of a mixture's experts, whole (1: every core has its columns
    of all of them).  Everything else is cut by `tensor`: neighbouring ranks share it, and where a stage has
    more cores, each further group of `tensor` cores has the same parts and computes the same rows.
    Raises UserError, naming the flag, for a degree below 1 and an `expert` that is no multiple of `tensor`.
    """

    pipeline: int = 1
    tensor: int = 1
    data: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            degree = getattr(self, field.name)
            if degree < 1:
                raise UserError(f"--{field.name} must be at least 1, not {degree}", field.name)
        if self.expert > 1 and self.expert % self.tensor:
            raise UserError(
                f"--expert {self.expert}: the cores of a stage are in groups of --tensor {self.tensor}; "
                "choose a multiple of it",
                "expert",
            )

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by the names of their flags; `expert` only where experts are divided."""
        named = {"pipeline": self.pipeline, "tensor": self.tensor, "data": self.data}
        return named | ({"expert": self.expert} if self.expert > 1 else {})

    @property
    def cores_per_stage(self) -> int:
        return max(self.tensor, self.expert)

    @property
    def cores_per_replica(self) -> int:
        return self.pipeline * self.cores_per_stage

    @property
    def cores(self) -> int:
        return self.cores_per_replica * self.data

    def core(self, stage: int, rank: int) -> int:
        """Returns the index of a core among its replica's Programs."""
        return stage * self.cores_per_stage + rank


def shard_axes(
    axes: Iterable[Axis], tensor: int, grouped: bool = True, spare_ranks: bool = False, expert: int = 1
) -> tuple[dict[Axis, AxisShard], ...]:
    """Returns for each core of a stage the part that it holds of each axis.

    Heads: with H query and G key/value heads on T ranks,
    - G a multiple of T: G / T consecutive groups on each rank;
    - T a multiple of G: each key/value head is copied to T / G ranks, which divide its query heads (Neuron's
    REPLICATE_TO_TP_DEGREE);
    - otherwise each query head gets its own copy of its key/value head (Neuron's CONVERT_TO_MHA).
    Ranks with fewer query heads than others are padded with zero heads, so all have one layout.
    Columns and the vocabulary are cut into contiguous parts of whole units (of smaller ones where there are
    fewer of them than ranks), which may differ by one unit.  Unless `grouped`, columns are cut in whichever
    of `EVEN_UNITS` makes the widest part narrowest.
    Experts are cut into `expert` runs that differ by one at most; for all other axes each further group of
    `tensor` cores has the parts of the first.
    Raises UserError where a rank would have no part; with `spare_ranks` it may have zero heads only.
    """
    each = list(dict.fromkeys(axes))
    _refuse_excess(each, tensor, spare_ranks)
    parts = [
        (
            axis,
            _shares(axis.width, expert) if axis.kind is AxisKind.EXPERTS else _parts(axis, tensor, grouped),
        )
        for axis in each
    ]
    cores = max(tensor, expert)
    return tuple({axis: shards[core % len(shards)] for axis, shards in parts} for core in range(cores))


def _shares(count: int, expert: int) -> list[AxisShard]:
    """Returns the parts of an axis of experts.  Raises UserError where a core would have none."""
    if expert > count:
        raise UserError(f"--expert {expert}: the model has {count} experts; choose at most {count}", "expert")
    return _contiguous_parts(count, expert, 1)


def _parts(axis: Axis, tensor: int, grouped: bool) -> list[AxisShard]:
    """Returns the parts of one axis."""
    match axis.kind:
        case AxisKind.HEADS | AxisKind.KV_HEADS:
            kv = axis.kind is AxisKind.KV_HEADS
            numbers = _assign_heads(*_counts(axis), tensor)
            return [_head_ranges(of_rank[kv], axis.unit) for of_rank in numbers]
        case AxisKind.COLUMNS:
            unit = axis.unit if grouped else _evenest_unit(axis.width, tensor)
            return _contiguous_parts(axis.width, tensor, unit)
        case AxisKind.VOCABULARY:
            return _contiguous_parts(axis.width, tensor, axis.unit)
        case AxisKind.HIDDEN | AxisKind.FIXED | AxisKind.EXPERTS:
            return [whole(axis.width)] * tensor


def _counts(axis: Axis) -> tuple[int, int]:
    """Returns the query and key/value heads of the layout that an axis of heads belongs to."""
    count = axis.width // axis.unit
    return (count * axis.group, count) if axis.kind is AxisKind.KV_HEADS else (count, count // axis.group)


def local_heads(heads: HeadLayout, tensor: int) -> HeadLayout:
    """Returns the layout of one rank's heads, padding included; it is the same on every rank."""
    queries, keys = (len(numbers) for numbers in _assign_heads(heads.heads, heads.kv_heads, tensor)[0])
    return HeadLayout(queries, keys, heads.head_dim, copied=keys * tensor > heads.kv_heads)


def whole(width: int) -> AxisShard:
    """Returns a shard with all of an axis."""
    return AxisShard(((0, width),))


def _refuse_excess(axes: Iterable[Axis], tensor: int, spare_ranks: bool) -> None:
    limits = []
    for axis in axes:
        if axis.kind is AxisKind.COLUMNS or axis.kind is AxisKind.VOCABULARY:
            limits.append((axis.width, f"{axis.name} columns"))
        elif axis.kind is AxisKind.HEADS and not spare_ranks:
            limits.append((axis.width // axis.unit, "attention heads"))
    limit, what = min(limits, default=(tensor, ""))
    if tensor > limit:
        raise UserError(f"--tensor {tensor}: the model has {limit} {what}; choose at most {limit}", "tensor")


def _assign_heads(heads: int, groups: int, tensor: int) -> list[tuple[list[int], list[int]]]:
    """Returns the query and key/value heads of each rank, by their number in the model; PAD is a zero
    head."""
    per_group = heads // groups
    if groups % tensor == 0:
        q = [_even_part(heads, tensor, r) for r in range(tensor)]
        kv = [_even_part(groups, tensor, r) for r in range(tensor)]
    elif tensor % groups == 0:
        copies = tensor // groups
        q = [_even_part(per_group, copies, r % copies, r // copies * per_group) for r in range(tensor)]
        kv = [[r // copies] for r in range(tensor)]
    else:
        q = [_even_part(heads, tensor, r) for r in range(tensor)]
        kv = [[PAD if h == PAD else h // per_group for h in part] for part in q]
    return list(zip(q, kv, strict=True))


def _even_part(count: int, parts: int, index: int, start: int = 0) -> list[int]:
    """Returns part `index` of the `count` numbers from `start`, padded to the size of the largest part."""
    own = range(count * index // parts, count * (index + 1) // parts)
    return [start + i for i in own] + [PAD] * (-(-count // parts) - len(own))


def _head_ranges(numbers: Iterable[int], head_dim: int) -> AxisShard:
    """Returns ranges of elements; adjacent heads, and adjacent zero heads, become one range."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        start = PAD if number == PAD else number * head_dim
        if ranges:
            last, length = ranges[-1]
            joins = last == PAD if start == PAD else last != PAD and last + length == start
            if joins:
                ranges[-1] = (last, length + head_dim)
                continue
        ranges.append((start, head_dim))
    return AxisShard(tuple(ranges))


def _evenest_unit(width: int, parts: int) -> int:
    """Returns the largest of the units with which the widest part is narrowest."""
    return min(EVEN_UNITS, key=lambda unit: (ceil(ceil(width / unit) / parts) * unit, -unit))


def _contiguous_parts(width: int, parts: int, unit: int) -> list[AxisShard]:
    """Returns parts of whole units, as even as possible; a last, narrower unit counts as one."""
    while -(-width // unit) < parts:
        unit //= 2
    units = -(-width // unit)
    bounds = [min(width, units * i // parts * unit) for i in range(parts + 1)]
    return [AxisShard(((a, b - a),)) for a, b in pairwise(bounds)]


def cut_layers(weights: Sequence[float], stages: int) -> tuple[range, ...]:
    """Returns consecutive layers for each of `stages`, with the heaviest stage as light as possible.

    `weights` has one entry for the part before the layers (counted in the first stage), one for each layer,
    and one for the part after them (counted in the last stage).  Each stage gets a layer.
    Raises UserError where there are more stages than layers.
    """
    layers = len(weights) - 2
    if stages > layers:
        raise UserError(
            f"--pipeline {stages}: the model has {layers} layers; choose at most {layers}", "pipeline"
        )
    ends = list(accumulate(weights[1:-1], initial=weights[0]))
    ends[-1] += weights[-1]
    bounds = _lightest_bounds([0.0, *ends[1:]], stages)
    return tuple(range(a, b) for a, b in pairwise(bounds))


def _lightest_bounds(ends: Sequence[float], stages: int) -> list[int]:
    """Finds the bounds of the stages by an exact dynamic programme over (stages used, layers placed).

    `ends[i]` is the weight of the first i layers.  Among cuts with an equally heavy heaviest stage, the sum
    of squares decides.
    """
    layers = len(ends) - 1
    best: list[tuple[float, float, list[int]]] = [(end, end * end, [0, i]) for i, end in enumerate(ends)]
    for stage in range(2, stages + 1):
        following = best[:stage]
        for i in range(stage, layers + 1):
            following.append(min(_extend(best[j], ends[i] - ends[j], i) for j in range(stage - 1, i)))
        best = following
    return best[layers][2]


def _extend(cut: tuple[float, float, list[int]], weight: float, end: int) -> tuple[float, float, list[int]]:
    heaviest, squares, bounds = cut
    return max(heaviest, weight), squares + weight * weight, [*bounds, end]
