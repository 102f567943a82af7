"""What one Op costs on one core, engine by engine; `cost` adds the Ops up.

Within an Op the engines work beside one another, so that it takes as long as the busiest of them, after a
start that nothing hides (a transfer's semaphore; weights are fetched ahead).  Ops follow one another.
- TensorE: 128 x 128 tiles of the weights, each over max(64, rows) columns (nki/api/nki/isa, nc_matmul).
- VectorE and ScalarE: passes over the elements, one a lane and cycle, max(64, n) cycles each; an operation
  on two fp32 operands takes two cycles an element (nki/api/nki/isa, tensor_tensor).
- DMA: weights once a step, less what stays on chip; keys and values of the contexts, embedding rows, in
  pieces of a head's or a row's size; logits.
- Collectives: a floor for each exchange, the hops, and what a rank passes on; the links are used in turn,
  not beside arithmetic.
Between the Ops of a Program activations stay on chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from corepipe.neuron.engines import AttentionCost, Cost, ExpertsCost, OpCost
from corepipe.neuron.graph import AxisKind, DType, Format, Op, RowSet, WeightRole
from corepipe.neuron.ops import (
    Activation,
    Add,
    AddEmbedding,
    AllGather,
    AllReduce,
    Attention,
    CrossAttention,
    Embed,
    Experts,
    GatedActivation,
    LatentAttention,
    LayerNorm,
    Linear,
    PatchEmbed,
    Receive,
    RMSNorm,
    Rope,
    Scale,
    SelectRows,
    Send,
)
from corepipe.neuron.rates import CoreRates, weight_bytes

TILE = 128
"""Rows and columns of the systolic array (nki/guides/architecture/trainium_inferentia2_arch.rst)."""

DMA_QUEUES = 16
"""DMA engines of a core, which start transfers beside one another (DMA guide: nki/deep-dives/)."""

MESH_BYTES = 1 << 20
"""Payload from which collectives go around a ring: neuron-runtime/explore/intranode-collective-comm.rst."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Passes of VectorE over an Op's elements: `one` and `two` by their number of operands; of ScalarE."""

    one: int = 0
    two: int = 0
    scalar: int = 0


PASSES: Mapping[type[Op], Passes] = MappingProxyType(
    {
        RMSNorm: Passes(one=1, two=2),  # times 1 / rms; x squared and summed, times the gain
        LayerNorm: Passes(one=2, two=1),  # statistics, normalise; times the gain plus the bias
        Rope: Passes(one=1, two=3),  # the rotated halves; two products, a sum
        GatedActivation: Passes(two=2, scalar=1),  # times the gate, times up; sigmoid
        Activation: Passes(scalar=1),
        Add: Passes(one=1),  # to what a matrix product has left in PSUM (nki/api/nki/isa, tensor_tensor)
        SelectRows: Passes(one=1),
        Scale: Passes(one=1),
    }
)
SOFTMAX = Passes(one=3, scalar=1)  # plus the mask, maximum, transposed, with the scores in PSUM; exponentials
COMBINE = Passes(two=2)  # an expert's result times its weight, and added


def op_cost(op: Op, fmt: Format, rates: CoreRates) -> Cost:  # noqa: PLR0911 -- one return a kind of Op
    """Cost of one Op.  Raises TypeError for a kind of Op that is not known.

    Send and Receive cost the core nothing: the DMA engines move activations.
    """
    match op:
        case Attention() | CrossAttention() | LatentAttention():
            return attention_cost(op, fmt, rates)
        case Linear():
            return _linear(op, fmt, rates)
        case PatchEmbed():
            return matrix_cost(op.out.rows, op.weight.shape, fmt, rates)
        case Experts():
            return _experts(op, fmt, rates)
        case Embed() | AddEmbedding():
            return _gather(op, fmt, rates)
        case AllReduce() | AllGather():
            return _collective(op, fmt, rates)
        case Send() | Receive():
            return OpCost(op.out.rows.number)
        case _:
            return _elementwise(op, fmt, rates)


def attention_cost(
    op: Attention | CrossAttention | LatentAttention, fmt: Format, rates: CoreRates
) -> AttentionCost:
    """Cost of one attention Op: the products with keys and values, a softmax, and what is read and kept.

    In latent attention all heads share one key, the latent itself.
    """
    latent = isinstance(op, LatentAttention)
    queries, keys = op.heads.heads, 1 if latent else op.heads.kv_heads
    kept = op.state.per_token if op.state is not None else 0
    width = kept if latent else op.heads.head_dim
    token = kept * fmt.compute.bytes
    copies = queries // keys if rates.expands_kv and op.heads.copied else 1
    tile = ceil(width / TILE) * TILE if rates.array else width
    piece = rates.pieces(fmt.compute.bytes * width)
    return AttentionCost(
        rows=op.out.rows.number,
        causal=latent or (isinstance(op, Attention) and op.causal),
        window=op.window if isinstance(op, Attention) else None,
        tensor=4 * tile * keys / rates.attention,
        group=queries // keys,
        min_rows=rates.min_rows,
        vector=queries * _cycles(SOFTMAX, fmt) / rates.vector,
        scalar=queries * SOFTMAX.scalar / rates.scalar,
        traffic=copies * token * (piece if rates.gathers_kv else 1 / rates.memory),
        write=token * piece,
        start=rates.start,
        queued=2 * rates.start / DMA_QUEUES,
        token_bytes=copies * token,
        flops=4.0 * width * queries,
    )


def _linear(op: Linear, fmt: Format, rates: CoreRates) -> OpCost:
    leaves = op.out.axis.kind is AxisKind.VOCABULARY
    return matrix_cost(op.out.rows, (op.out.width, op.x.width), fmt, rates, leaves=leaves)


def matrix_cost(
    rows: RowSet, shape: tuple[int, ...], fmt: Format, rates: CoreRates, *, leaves: bool = False
) -> OpCost:
    """Rows times a matrix [n, k]; results come out of PSUM in a pass, and to memory if they leave.

    fp32 activations that meet narrower weights are converted first.
    """
    n, k = shape
    tiles = (ceil(n / TILE) * TILE, ceil(k / TILE) * TILE) if rates.array else (n, k)
    stored = weight_bytes((n, k), WeightRole.MATRIX, fmt) * rates.read_share
    casts = k if fmt.compute is DType.FP32 and fmt.multiplied is not DType.FP32 else 0
    row_bytes = n * fmt.compute.bytes if leaves else 0
    return OpCost(
        rows.number,
        tensor=2 * tiles[0] * tiles[1] / rates.matmul,
        min_rows=rates.min_rows,
        vector=(0.0, (n + casts) / rates.vector),
        dma=(stored / rates.memory, row_bytes / rates.memory),
        read=(stored, 0.0),
        written=row_bytes,
        flops=2.0 * n * k,
    )


def _experts(op: Experts, fmt: Format, rates: CoreRates) -> ExpertsCost:
    """An expert's three matrices and its gate; its result is weighted and added to the others'.

    Where all experts take all rows, the results of their first two products and of the third are tensors of
    [experts, rows, 2 x ffn] and [experts, rows, hidden] (NxD's ExpertMLPs.forward_all_experts): no on-chip
    memory holds those of a prompt, so that each is written to memory and read by the next step.
    """
    gate, up, down = (
        matrix_cost(op.out.rows, shape, fmt, rates)
        for shape in ((op.ffn, op.x.width), (op.ffn, op.x.width), (op.out.width, op.ffn))
    )
    gated = _elements(op.out.rows, PASSES[GatedActivation], op.ffn, fmt, rates)
    added = _elements(op.out.rows, COMBINE, op.out.width, fmt, rates)
    middle, result = (n * fmt.compute.bytes for n in (2 * op.ffn, op.out.width))
    steps = (
        _merged((gate, up), rates, written=middle),
        _merged((gated, down), rates, read=middle, written=result),
        _merged((added,), rates, read=result),
    )
    one = _merged((gate, up, gated, down, added), rates)
    return ExpertsCost(one, steps, op.experts, op.top_k, 2 * rates.start)


def _elements(rows: RowSet, passes: Passes, width: int, fmt: Format, rates: CoreRates) -> OpCost:
    """Passes over the elements of a step's rows, beside its products."""
    vector, scalar = _cycles(passes, fmt) * width, passes.scalar * width
    return OpCost(rows.number, vector=(0.0, vector / rates.vector), scalar=(0.0, scalar / rates.scalar))


def _merged(parts: Sequence[OpCost], rates: CoreRates, read: int = 0, written: int = 0) -> OpCost:
    """Products and passes as one Op, which beside weights reads and writes so many bytes a row."""
    return OpCost(
        parts[0].rows,
        tensor=sum(p.tensor for p in parts),
        min_rows=rates.min_rows,
        vector=(0.0, sum(p.vector[1] for p in parts)),
        scalar=(0.0, sum(p.scalar[1] for p in parts)),
        dma=(sum(p.dma[0] for p in parts), (read + written) / rates.memory),
        start=rates.start,
        read=(sum(p.read[0] for p in parts), float(read)),
        written=float(written),
        flops=sum(p.flops for p in parts),
    )


def _gather(op: Op, fmt: Format, rates: CoreRates) -> OpCost:
    """A row of a table for each row."""
    size = op.out.width * fmt.compute.bytes
    moved = (0.0, size * rates.pieces(size))
    return OpCost(op.out.rows.number, dma=moved, start=rates.start, read=(0.0, float(size)))


def _cycles(passes: Passes, fmt: Format) -> int:
    """Cycles of VectorE an element."""
    return passes.one + passes.two * (2 if fmt.compute is DType.FP32 else 1)


def _elementwise(op: Op, fmt: Format, rates: CoreRates) -> OpCost:
    if type(op) not in PASSES:
        raise TypeError(f"no cost is known for {type(op).__name__}")
    passes = PASSES[type(op)]
    cycles = _cycles(passes, fmt)
    return OpCost(
        op.out.rows.number,
        vector=(cycles * rates.pass_seconds, cycles * op.out.width / rates.vector),
        scalar=(passes.scalar * rates.pass_seconds, passes.scalar * op.out.width / rates.scalar),
        start=rates.start,
    )


def _collective(op: AllReduce | AllGather, fmt: Format, rates: CoreRates) -> OpCost:
    """An all-gather is one exchange, an all-reduce two: a reduce-scatter and an all-gather.

    In each a rank passes on (degree - 1) / degree of the payload.  Small payloads go to all ranks at once,
    large ones from neighbour to neighbour; between the two the steps are counted in part.
    """
    exchanges = 2 if isinstance(op, AllReduce) else 1
    payload = op.out.width * fmt.compute.bytes
    moved = payload * (rates.degree - 1) / rates.degree
    return OpCost(
        op.out.rows.number,
        collectives=(
            exchanges * (rates.group.seconds + rates.exchange),
            exchanges * moved / rates.group.bytes_per_second,
        ),
        ring=(exchanges * rates.ring, payload / MESH_BYTES),
    )
