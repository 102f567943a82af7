"""The Ops in numpy: `compute` returns the result [rows, width] of an Op on one core.

None: it must wait for another core.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.arithmetic import F32, I32
from corepipe.neuron.ops import (
    Add,
    AddEmbedding,
    AllGather,
    AllReduce,
    Attention,
    CausalConvolution,
    Clamp,
    ElementwiseActivation,
    Experts,
    GatedActivation,
    GatherSlots,
    L2Norm,
    LatentAttention,
    LayerNorm,
    Linear,
    Op,
    PatchEmbed,
    PoolingMode,
    Receive,
    RMSNorm,
    Rope,
    RowIndex,
    ScaleRows,
    Scoring,
    SelectiveScan,
    SelectRows,
    Send,
    SequencePooling,
    TokenEmbedding,
)
from corepipe.neuron.values import TOKENS, WeightSpec
from tests.reference import arithmetic
from tests.reference.arithmetic import round_to
from tests.reference.attention import AttentionScores, HeadVectors, attend
from tests.reference.core import Run
from tests.reference.routing import routed, weighed_sum


@singledispatch
def compute(op: Op, _at: Run) -> F32 | None:
    raise NotImplementedError(f"{type(op).__name__} has no reference implementation")


@compute.register
def _(op: TokenEmbedding, at: Run) -> F32:
    return at.weight(op.table)[at.inputs.tokens]


@compute.register
def _(op: AddEmbedding, at: Run) -> F32:
    index = at.inputs.types if op.by is RowIndex.TYPE else at.inputs.positions
    return arithmetic.add(at[op.x], at.weight(op.table)[index + op.offset], at.format.compute)


@compute.register
def _(op: PatchEmbed, at: Run) -> F32:
    first = at.weight(op.first)
    patches = round_to(at.inputs.patches, at.format.compute)
    out = arithmetic.linear(patches, at.matrix(op.weight), at.weight(op.bias), at.format)
    learned = at.inputs.positions < len(first)
    out[learned] = round_to(first[at.inputs.positions[learned]], at.format.compute)
    return out


@compute.register
def _(op: Linear, at: Run) -> F32:
    bias = at.optional(op.bias)
    out = arithmetic.linear(at[op.x], at.matrix(op.weight), bias, at.format)
    if not len(at.inputs.adapters):
        return out
    slots = at.inputs.adapters
    own = slots if op.out.rows == TOKENS else slots[at.inputs.logit_rows]
    for slot, adapter in at.core.adapters.items():
        rows = own == slot
        if op.weight.name in adapter and rows.any():
            x = at[op.x][rows]
            out[rows] = arithmetic.adapted(x, at.matrix(op.weight), bias, adapter[op.weight.name], at.format)
    return out


@compute.register
def _(op: RMSNorm, at: Run) -> F32:
    return arithmetic.rms_norm(at[op.x], at.weight(op.gain), op.eps, at.format.compute, op.groups or 1)


@compute.register
def _(op: L2Norm, at: Run) -> F32:
    return arithmetic.normalize(at[op.x], op.eps, at.format.compute)


@compute.register
def _(op: LayerNorm, at: Run) -> F32:
    gain, bias = at.optional(op.gain), at.optional(op.bias)
    return arithmetic.layer_norm(at[op.x], gain, bias, op.eps, at.format.compute, op.groups or 1)


@compute.register
def _(op: GatedActivation, at: Run) -> F32:
    return arithmetic.gated(at[op.gate], at[op.up], op.function, at.format.compute)


@compute.register
def _(op: ElementwiseActivation, at: Run) -> F32:
    return arithmetic.activation(at[op.x], op.function, at.format.compute)


@compute.register
def _(op: Clamp, at: Run) -> F32:
    return arithmetic.clamp(at[op.x], op.limit, at.format.compute)


@compute.register
def _(op: ScaleRows, at: Run) -> F32:
    by = None if op.by is None else at[op.by]
    return arithmetic.scale(at[op.x], op.factor, at.format.compute, by)


@compute.register
def _(op: Add, at: Run) -> F32:
    return arithmetic.add(at[op.a], at[op.b], at.format.compute)


@compute.register
def _(op: SelectRows, at: Run) -> F32:
    return at[op.x][at.inputs.logit_rows]


@compute.register
def _(op: SequencePooling, at: Run) -> F32:
    x = at[op.x]
    rows = [pooled(x[a:b], op.mode) for a, b in pairwise(at.inputs.sequence_starts)]
    return round_to(np.stack(rows), at.format.compute)


def pooled(x: F32, mode: PoolingMode) -> F32:
    """Returns one row [width] of a sequence's [rows, width], unrounded."""
    count, places = np.float32(len(x)), np.arange(1, len(x) + 1, dtype=np.float32)
    match mode:
        case PoolingMode.FIRST:
            row = x[0]
        case PoolingMode.SECOND:
            row = x[min(1, len(x) - 1)]
        case PoolingMode.LAST:
            row = x[-1]
        case PoolingMode.MEAN:
            row = x.sum(axis=0) / count
        case PoolingMode.MAX:
            row = x.max(axis=0)
        case PoolingMode.MEAN_SQRT_LEN:
            row = x.sum(axis=0) / np.sqrt(count)
        case PoolingMode.WEIGHTED_MEAN:
            row = (x * places[:, None]).sum(axis=0) / places.sum()
    return np.asarray(row, np.float32)


@compute.register
def _(op: Rope, at: Run) -> F32:
    return arithmetic.rotate(at[op.x], op.head_dim, *at.rotation(op.rope), at.format.compute)


@compute.register
def _(op: Attention, at: Run) -> F32:
    slopes = None if op.alibi is None else at.of_heads(op.alibi, op.q.axis)
    biases = None if op.distance_bias is None else _own_biases(op, op.distance_bias, at)
    sinks = None if op.sinks is None else at.weight(op.sinks)[0]
    kind = AttentionScores(op.scale, op.window, op.softcap, slopes, op.causal, biases, sinks, op.chunked)
    return _over_cache(op, at, kind) if op.causal else _over_rows(op, at, kind)


def _own_biases(op: Attention, spec: WeightSpec, at: Run) -> F32:
    """Returns the biases of the core's heads [buckets, heads]."""
    table = at.weight(spec)
    if spec.axes[1].is_cut:
        return table
    return np.stack([at.of_heads(row.tolist(), op.q.axis) for row in table])


def _over_rows(op: Attention, at: Run, kind: AttentionScores) -> F32:
    """Computes the attention of each sequence over its own rows."""
    positions = at.inputs.positions
    q, k, v = (at[x].reshape(len(at[x]), -1, op.heads.head_dim) for x in (op.q, op.k, op.v))
    parts = [slice(a, b) for a, b in pairwise(at.inputs.sequence_starts)]
    out = [
        attend(q[s], HeadVectors(k[s]), HeadVectors(v[s]), positions[s], kind, at.format.compute)
        for s in parts
    ]
    return np.concatenate(out)


def _over_cache(op: Attention, at: Run, kind: AttentionScores) -> F32:
    inputs, dtype = at.inputs, at.format.compute
    keys, values = at.cache(op.layer)
    q = _tempered(op, _normed(op, at[op.q], dtype), inputs.positions, dtype)
    q = q.reshape(-1, op.heads.heads, op.heads.head_dim)
    new_keys, new_values = (
        x.reshape(-1, *keys.elements.shape[1:]) for x in (_normed(op, at[op.k], dtype), at[op.v])
    )
    out = np.empty_like(at[op.q])
    for rows, own, seen in _sequences(at):
        keys.put_keys(own, new_keys[rows])
        values.put(own, new_values[rows])
        out[rows] = attend(q[rows], keys.at(seen), values.at(seen), inputs.positions[rows], kind, dtype)
    return out


def _normed(op: Attention, x: F32, dtype: DType) -> F32:
    if op.head_eps is None:
        return x
    return arithmetic.rms_norm(x, np.ones(op.heads.head_dim, np.float32), op.head_eps, dtype)


def _tempered(op: Attention, q: F32, positions: I32, dtype: DType) -> F32:
    if op.tempering is None:
        return q
    return arithmetic.scale(q, 1.0, dtype, op.tempering.factors(positions)[:, None])


def _sequences(at: Run) -> Iterator[tuple[slice, npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yields for each sequence of the batch its rows, their slots in the cache, and the slots of all
    positions up to the last of them."""
    for table, (begin, end) in zip(at.inputs.block_tables, pairwise(at.inputs.sequence_starts), strict=True):
        positions = at.inputs.positions[begin:end]
        seen = at.slots(table, np.arange(positions.max(initial=-1) + 1))
        yield slice(begin, end), at.slots(table, positions), seen


@compute.register
def _(op: LatentAttention, at: Run) -> F32:
    """Computes the attention over the latents themselves, for prompts and answers alike: bits depend on no
    other row.

    The products with the latents are rounded, on both sides.  Both matrices are converted from their stored
    numbers and rounded.
    """
    dtype, heads = at.format.compute, op.heads.heads
    key_up, value_up = (_of_each_head(op, spec, at) for spec in (op.key_up, op.value_up))
    latents, _ = at.cache(op.layer)
    new = np.concatenate((at[op.latent], at[op.key_rope]), axis=1)[:, None]
    rotary, rest = np.split(at[op.q].reshape(len(new), heads, -1), [op.key_rope.width], axis=2)
    asked = round_to((rest.swapaxes(0, 1) @ key_up).swapaxes(0, 1), dtype)
    q = np.concatenate((asked, rotary), axis=2)
    found = np.empty((len(new), heads * op.latent.width), np.float32)
    for rows, own, seen in _sequences(at):
        latents.put(own, new[rows])
        keys, positions = latents.at(seen), at.inputs.positions[rows]
        values, kind = keys.first(op.latent.width), AttentionScores(op.scale)
        found[rows] = attend(q[rows], keys, values, positions, kind, dtype, rotated=False)
    by_head = found.reshape(len(new), heads, -1).swapaxes(0, 1)
    out = (by_head @ value_up.swapaxes(1, 2)).swapaxes(0, 1).reshape(len(new), -1)
    return round_to(out, dtype)


def _of_each_head(op: LatentAttention, spec: WeightSpec, at: Run) -> F32:
    """Returns a matrix as [heads, n, rank]."""
    values = round_to(arithmetic.dense(at.matrix(spec)), at.format.compute)
    return values.reshape(op.heads.heads, -1, values.shape[1])


@compute.register
def _(op: CausalConvolution, at: Run) -> F32:
    x, kept = at[op.x], at.state(op, op.shape)
    weight = at.weight(op.weight)[:, 0, :].T
    bias = np.float32(0) if op.bias is None else at.weight(op.bias)
    out = np.empty_like(x)
    for rows, before, after in at.turns():
        seen = np.concatenate((np.zeros_like(kept[0]) if before is None else kept[before], x[rows]))
        count = len(seen) - op.taps + 1
        out[rows] = bias + sum(weight[k] * seen[k : k + count] for k in range(op.taps))
        kept[after] = seen[count:]
    return arithmetic.activation(out, op.function, at.format.compute)


@compute.register
def _(op: SelectiveScan, at: Run) -> F32:
    heads, width, states = op.shape
    x, b, c, dt = (at[value] for value in (op.x, op.b, op.c, op.dt))
    rate, dt_bias, skip = -np.exp(at.weight(op.log_rate)), at.weight(op.dt_bias), at.weight(op.skip)
    least, most = (np.float32(limit) for limit in op.limits)
    step = np.clip(np.logaddexp(np.float32(0), dt + dt_bias), least, most)
    decay = np.exp(step * rate)[:, :, None, None]
    shared = heads // op.heads.kv_heads
    b, c = (np.repeat(v.reshape(len(v), -1, states), shared, axis=1) for v in (b, c))
    entering = (step[:, :, None] * x.reshape(-1, heads, width))[..., None] * b[:, :, None, :]
    kept, out = at.state(op, op.shape), np.empty((len(x), heads, width), np.float32)
    for rows, before, after in at.turns():
        h = np.zeros_like(kept[0]) if before is None else kept[before]
        for row in range(rows.start, rows.stop):
            h = decay[row] * h + entering[row]
            out[row] = (h @ c[row, :, :, None])[..., 0]
        kept[after] = h
    out += skip[:, None] * x.reshape(out.shape)
    return round_to(out.reshape(x.shape), at.format.compute)


@compute.register
def _(op: Experts, at: Run) -> F32:
    """Computes the sum: each product and each expert's result are rounded; their sum is rounded once."""
    x, fmt = at[op.x], at.format
    chosen, weights = routed(op, at[op.routing], at.optional(op.correction))
    gate, up, down = (at.matrices(spec) for spec in (op.gate, op.up, op.down))
    into_gate, into_up, back = (*map(at.weight, op.biases), None, None, None)[:3]
    first, count = op.own or (0, op.experts)
    results = np.zeros((*chosen.shape, op.x.width), np.float32)
    for expert in range(count):
        rows, places = np.nonzero(chosen == first + expert)
        if not len(rows):
            continue
        taken = x[rows]
        if op.scoring is Scoring.INPUT_SIGMOID:
            taken = arithmetic.scale(taken, 1.0, fmt.compute, weights[rows, places, None])
        gates = arithmetic.linear(taken, gate[expert], _own(into_gate, expert), fmt)
        ups = arithmetic.linear(taken, up[expert], _own(into_up, expert), fmt)
        middle = arithmetic.gated(gates, ups, op.function, fmt.compute)
        results[rows, places] = arithmetic.linear(middle, down[expert], _own(back, expert), fmt)
    return results.reshape(len(x), -1) if op.own else weighed_sum(op, results, weights, fmt)


def _own(biases: F32 | None, expert: int) -> F32 | None:
    return None if biases is None else biases[expert]


@compute.register
def _(op: GatherSlots, at: Run) -> F32 | None:
    parts = at.exchange(op.x, stage=True)
    if parts is None:
        return None
    chosen, weights = routed(op.mixture, at[op.routing], at.optional(op.mixture.correction))
    owners = np.searchsorted(op.bounds, chosen, side="right") - 1
    every = np.stack([part.reshape(*chosen.shape, -1) for part in parts])
    rows, places = np.indices(chosen.shape)
    return weighed_sum(op.mixture, every[owners, rows, places], weights, at.format)


@compute.register
def _(op: AllReduce, at: Run) -> F32 | None:
    parts = at.exchange(op.x)
    return None if parts is None else round_to(sum(parts[1:], parts[0]), at.format.compute)


@compute.register
def _(op: AllGather, at: Run) -> F32 | None:
    parts = at.exchange(op.x)
    if parts is None:
        return None
    return np.concatenate([part[:, :width] for part, width in zip(parts, op.widths, strict=True)], axis=1)


@compute.register
def _(op: Send, at: Run) -> F32:
    at.send(op.peer, at[op.x])
    return at[op.x]


@compute.register
def _(op: Receive, at: Run) -> F32 | None:
    return at.receive(op.peer)
