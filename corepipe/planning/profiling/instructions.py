"""Counts of matmul instructions of an Op: tiles of 128 x 128 stationary and up to 512 moving columns.

The tile is nki/api/nki/isa's (nc_matmul).  In attention the queries that share a key/value head move
together, and all contexts of a step are taken as equally long.
"""

from __future__ import annotations

from math import ceil

from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.ops import (
    Attention,
    Convolution,
    CrossAttention,
    Experts,
    LatentAttention,
    Linear,
    Op,
    PatchEmbed,
    SelectiveScan,
    Upconvolution,
)
from corepipe.neuron.ops.scans import CHUNK
from corepipe.neuron.timing.cost import StepShape
from corepipe.neuron.values import WeightRole

TILE, MOVING = 128, 512


def matmul_instructions(op: Op, shape: StepShape) -> int:
    """Returns the instructions of one Op of a core in a step; 0 for an Op that does not use TensorE.
    Raises TypeError for a new kind."""
    rows, count = shape.rows_of(op.out.rows.number), 0
    match op:
        case Linear():
            count = _tiles(op.out.width, op.x.width, rows)
        case PatchEmbed():
            count = _tiles(op.weight.shape[0], op.weight.shape[1], rows)
        case Convolution() | Upconvolution():
            count = _convolution(op, rows)
        case Experts():
            chosen = rows * op.top_k
            experts, each = (chosen, 1) if chosen < op.experts else (op.experts, rows)
            count = experts * (2 * _tiles(op.ffn, op.x.width, each) + _tiles(op.out.width, op.ffn, each))
        case Attention():
            count = _attention(op.heads, op.heads.head_dim, rows, shape, op.window)
        case CrossAttention():
            count = _attention(op.heads, op.heads.head_dim, rows, shape, None)
        case LatentAttention():
            shared = HeadLayout(op.heads.heads, 1, op.heads.head_dim)
            count = _attention(shared, op.kept, rows, shape, None)
        case SelectiveScan():
            count = _scan(op, rows, shape)
        case _ if op.head_layout is not None or any(spec.role is WeightRole.MATRIX for spec in op.weights):
            raise TypeError(f"the instructions of {type(op).__name__} are not counted; add its case here")
    return count


def _tiles(n: int, k: int, rows: int) -> int:
    return ceil(n / TILE) * ceil(k / TILE) * ceil(rows / MOVING)


def _convolution(op: Convolution | Upconvolution, images: int) -> int:
    """Returns one product per group, over all positions; a depthwise convolution has none."""
    if isinstance(op, Upconvolution):
        return op.factor**2 * _tiles(op.out.width, op.x.width, images * op.x.rows.each)
    if op.is_depthwise:
        return 0
    return op.groups * _tiles(op.out.width // op.groups, op.contraction, images * op.out.rows.each)


def _scan(op: SelectiveScan, rows: int, shape: StepShape) -> int:
    """Returns the products of chunks of prompts; a token of an answer needs none."""
    if shape.decodes:
        return 0
    (heads, width, states), sequences = op.shape, max(1, shape.sequences)
    of_head = _tiles(width, CHUNK, CHUNK) + _tiles(width, states, CHUNK) + _tiles(width, CHUNK, states)
    chunks = sequences * ceil(rows / (sequences * CHUNK))
    return chunks * (op.heads.kv_heads * _tiles(CHUNK, states, CHUNK) + heads * of_head)


def _attention(heads: HeadLayout, width: int, rows: int, shape: StepShape, window: int | None) -> int:
    """Returns two products for each key/value head and sequence."""
    sequences = max(1, shape.sequences)
    context = ceil(shape.kv_tokens / sequences)
    keys = context if window is None else min(context, window)
    moving = ceil(rows / sequences) * (heads.heads // heads.kv_heads)
    return 2 * heads.kv_heads * sequences * _tiles(keys, width, moving)
