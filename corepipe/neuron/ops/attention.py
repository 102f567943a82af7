"""Kinds of attention, and the rotation of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from corepipe.neuron.axes import HeadLayout
from corepipe.neuron.chips.engines import AttentionCost, Cost
from corepipe.neuron.chips.rates import TILE, CoreRates
from corepipe.neuron.chips.runtime_profile import AttentionKernel
from corepipe.neuron.formats import Format
from corepipe.neuron.numerics.attention import Tempering
from corepipe.neuron.ops.base import (
    Bindings,
    NativeProgram,
    NewAxisOp,
    Op,
    SameWidthOp,
)
from corepipe.neuron.ops.costs import Passes, elementwise_cost
from corepipe.neuron.values import TOKENS, RopeSpec, StateKind, StateSpec, Value, WeightSpec

MOST_OF_A_KEY = 576
"""Largest number of elements of a latent and the rotated part beside it (kMaxHeadDim of the kernels)."""

DMA_QUEUES = 16
"""DMA engines of a core, which start transfers in parallel (DMA guide: nki/deep-dives/)."""

REWRITES, PICKS = 7, 3
"""Number of times that keys and values cross memory where a step of a beam search rewrites them.

The beams' are picked, by reading and writing all of them, and read; a decoder's own are also appended to and
cut to their length, each by reading and writing
(src/examples/pytorch/neuronx_distributed/t5-inference/wrapper.py: reorder_cache, update_past).

The picked elements are read in pieces of one element: reorder_cache is a torch.gather with an index for each
element, which PyTorch/XLA lowers to a gather of single elements on all devices but TPUs
(torch_xla/csrc/data_ops.cpp: IsSparseGather).
"""

INDEX = 2 * 4 * 4
"""Bytes that are written and read for the index of each picked element: its place in [beams, heads, tokens,
width], a number of 4 bytes each (xla/client/lib/slicing.cc: TorchGather)."""

SCORE_BYTES = 4
"""Bytes of a score in memory, as the array has left it in PSUM: fp32."""

WINDOWED = 1
"""Additional crossings, each way, for a second mask (mistral/hlo.py)."""

SOFTMAX = Passes(one=3, scalar=1)  # plus the mask, maximum, transposed, with the scores in PSUM; exponentials


@dataclass(frozen=True, slots=True)
class Rope(SameWidthOp):
    """Rotates each head of x by the row's position; elements past the rotary width are copied."""

    x: Value
    head_dim: int
    rope: RopeSpec

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        passes = Passes(one=1, two=3)  # the rotated halves; two products, a sum
        cost = elementwise_cost(self.out, passes, fmt, rates)
        return replace(cost, start=0.0) if rates.style.fuses_rope else cost

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        native.rope(at.buffer(self.x), at.buffer(self.out), self.head_dim, *at.rope(self.rope))


@dataclass(frozen=True, slots=True)
class Attention(SameWidthOp):
    """Writes k and v to the layer's paged cache, then computes causal softmax attention over the cache.

    Scores are q.k * scale.  `window` is the number of latest positions that a row attends to (None: all).
    `chunked`: a row attends from the last multiple of `window` on instead, which is never further back.
    The cache holds the compute dtype, or int8 with a scale for each head's key and value; probabilities are
    rounded to the compute dtype before they are multiplied by v.
    Not `causal`: each row attends to all rows of its sequence, with a window to those at most half of it
    away, and nothing is kept.  `softcap` c: scaled scores become c tanh(score / c).  `alibi`: scores then
    fall with distance, by the slope of each of the model's heads (Press et al. 2022); a core uses those of
    its own heads.  `distance_bias` is added to scores by distance, with a row per bucket and a column per
    head of the model (Raffel et al. 2020); `sinks` [1, heads] are counted in the softmax only (gpt-oss).
    `head_eps`: epsilon of a root-mean-square norm over each query and key, without a gain, before they are
    used; `tempering`: scales queries after that (Llama 4).
    """

    q: Value
    k: Value
    v: Value
    heads: HeadLayout
    scale: float
    window: int | None = None
    causal: bool = True
    alibi: tuple[float, ...] | None = None
    softcap: float | None = None
    distance_bias: WeightSpec | None = None
    sinks: WeightSpec | None = None
    chunked: bool = False
    head_eps: float | None = None
    tempering: Tempering | None = None

    @property
    def state(self) -> StateSpec | None:
        return _kept(StateKind.TOKENS, self.heads, self.window) if self.causal else None

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return _cost(self, self.heads, fmt, rates, causal=self.causal, window=self.window)

    def refuses(self, fmt: Format) -> str | None:
        biased = self.distance_bias is not None and self.causal
        if biased or self.k.rows != TOKENS:
            return Op.refuses(self, fmt)
        if self.causal:
            return None
        if self.chunked or self.head_eps is not None or self.tempering:
            return "has chunks, or norms of heads, or tempers queries, but is not causal"
        return "falls with distance, but is not causal" if self.alibi else None


@dataclass(frozen=True, slots=True)
class CrossAttention(SameWidthOp):
    """A decoder's attention to the encoder's rows: k and v are made once per sequence, and kept."""

    q: Value
    k: Value
    v: Value
    heads: HeadLayout
    scale: float

    @property
    def state(self) -> StateSpec:
        return _kept(StateKind.SOURCE, self.heads)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        return _cost(self, self.heads, fmt, rates, causal=False, crossings=PICKS)


@dataclass(frozen=True, slots=True)
class LatentAttention(NewAxisOp):
    """Causal attention that keeps one latent per token for all heads (DeepSeek-V2, 2024, section 2.1).

    q: [rows, heads x head_dim]; latent: [rows, rank]; key_rope: [rows, rotary width], rotated, the part of
    the keys that the heads share.  A head's key is its part of key_up @ latent and key_rope; its value is its
    part of value_up @ latent.  A head of q has its rotated elements first.  key_up is [heads x (head_dim -
    rotary width), rank], value_up is [heads x value size, rank], out is [rows, heads x value size].  Here, as
    on a device, q is multiplied by key_up and the result by value_up, and the attention runs over the latents
    themselves.
    """

    q: Value
    latent: Value
    key_rope: Value
    key_up: WeightSpec
    value_up: WeightSpec
    heads: HeadLayout
    scale: float

    @property
    def state(self) -> StateSpec:
        width = self.latent.width + self.key_rope.width
        return StateSpec(StateKind.TOKENS, width, shared=self.latent.width)

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of attention whose heads all share one key, the latent itself."""
        shared = HeadLayout(self.heads.heads, 1, self.state.per_token)
        return _cost(self, shared, fmt, rates, causal=True)

    def refuses(self, _fmt: Format) -> str | None:
        if self.state.per_token <= MOST_OF_A_KEY:
            return None
        return f"keeps {self.state.per_token} elements of a token; the kernels take {MOST_OF_A_KEY}"

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        cache, layer, table = at.latents(self)
        native.latent_attention(
            (at.buffer(self.q), at.buffer(self.latent), at.buffer(self.key_rope)),
            at.buffer(self.out),
            cache,
            layer,
            at.of_each_head(self.key_up, self.heads.heads, turned=True),
            at.of_each_head(self.value_up, self.heads.heads, turned=False),
            self.scale,
            table,
        )


def _softmax(queries: int, fmt: Format, rates: CoreRates) -> tuple[float, float]:
    """Returns the seconds of VectorE and of ScalarE per key; exponentials run on the engine with which the
    pair ends sooner."""
    passes, exponentials = queries * SOFTMAX.cycles(fmt) / rates.vector, queries * SOFTMAX.scalar
    apart = passes, exponentials / rates.scalar
    if not rates.exponentials:
        return apart
    together = passes + exponentials / rates.exponentials, 0.0
    return min(apart, together, key=max)


def _kept(kind: StateKind, heads: HeadLayout, window: int | None = None) -> StateSpec:
    """Returns the state of keys and values."""
    return StateSpec(kind, 2 * heads.kv_heads * heads.head_dim, window, vectors=2 * heads.kv_heads)


def _cost(
    op: Op,
    heads: HeadLayout,
    fmt: Format,
    rates: CoreRates,
    *,
    causal: bool,
    window: int | None = None,
    crossings: int = REWRITES,
) -> AttentionCost:
    """Returns the cost of the products with keys and values, a softmax, and the bytes read and kept.

    crossings: number of times that keys and values cross memory, where they are rewritten.
    """
    queries, keys, width = heads.heads, heads.kv_heads, heads.head_dim
    token = op.kept * fmt.compute.bytes
    tile = ceil(width / TILE) * TILE if rates.array else width
    piece = rates.pieces(fmt.compute.bytes * width)
    if rates.style.rewrites_kv:
        moved = crossings * token + INDEX * op.kept
        traffic = (moved - token) / rates.memory + token * rates.pieces(fmt.compute.bytes)
    else:
        moved = token * (queries // keys if rates.style.expands_kv and heads.copied else 1)
        traffic = moved * (piece if rates.style.gathers_kv else 1 / rates.memory)
    vector, scalar = _softmax(queries, fmt, rates)
    plain = AttentionCost(
        rows=op.out.rows.number,
        causal=causal,
        window=None if rates.style.masks_window else window,
        tensor=4 * tile * keys / rates.attention,
        group=queries // keys,
        min_rows=rates.min_rows,
        vector=vector,
        scalar=scalar,
        traffic=traffic,
        write=token * piece,
        scattered=token * (rates.pieces(fmt.compute.bytes) if rates.style.batch_innermost else piece),
        start=rates.start,
        lanes=rates.lanes / queries if rates.style.softmax_after_reads else 0.0,
        queued=2 * rates.start / DMA_QUEUES,
        token_bytes=moved,
        flops=4.0 * width * queries,
    )
    return _spilling(plain, queries, rates, again=WINDOWED if window is not None else 0)


def _spilling(cost: AttentionCost, queries: int, rates: CoreRates, again: int) -> AttentionCost:
    """Adds the memory traffic of long prompts' scores between the steps of their softmax, where those are
    separate operations.

    They move in pieces of a tile's row.
    """
    if rates.style.kernel is not AttentionKernel.SEPARATE:
        return cost
    size = queries * SCORE_BYTES
    written, read = rates.style.crossings
    crossing = (size * (written + again), size * (read + again))
    return replace(
        cost,
        held=rates.on_chip / size,
        spills_from=rates.style.separate_from,
        spilled=sum(crossing) * rates.pieces(TILE * SCORE_BYTES),
        spilled_bytes=crossing,
    )
