"""Graphs and Programs of Llama-like models, built by hand, for the tests of the device model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corepipe.neuron.axes import Axis, AxisShard, HeadLayout, columns, fixed, hidden, vocabulary
from corepipe.neuron.compile.memory import DeploymentLimits
from corepipe.neuron.compile.program import Program, WeightShard
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import (
    Add,
    AllReduce,
    Attention,
    Experts,
    GatedActivation,
    Linear,
    Op,
    Receive,
    RMSNorm,
    Rope,
    SelectRows,
    Send,
    TokenEmbedding,
)
from corepipe.neuron.values import (
    TOKENS,
    WANTED,
    GraphInput,
    GraphOutput,
    InputKind,
    OutputKind,
    RopeSpec,
    RowSet,
    Value,
    WeightRole,
    WeightSpec,
)

LIMITS = DeploymentLimits(
    max_model_len=2048, max_num_seqs=32, max_num_batched_tokens=512, block_size=32, max_blocks=2048
)


@dataclass(frozen=True)
class Sizes:
    layers: int
    hidden: int
    heads: HeadLayout
    ffn: int
    vocab: int
    window: int | None = None


SMOLLM2 = Sizes(30, 576, HeadLayout(9, 3, 64), 1536, 49152)
"""The sizes of SmolLM2-135M."""
TINY = Sizes(8, 64, HeadLayout(4, 2, 16), 128, 256)
LLAMA_70B = Sizes(80, 8192, HeadLayout(64, 8, 128), 28672, 128256)


class _Builder:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.layer = -1

    def value(self, axis: Axis, rows: RowSet = TOKENS) -> Value:
        return Value(len(self.ops), axis, rows)

    def add(self, op: Op) -> Value:
        self.ops.append(op)
        return op.out

    def norm(self, x: Value) -> Value:
        gain = WeightSpec(f"norm{len(self.ops)}", (x.axis,), WeightRole.VECTOR)
        return self.add(RMSNorm(self.layer, self.value(x.axis, x.rows), x, gain, 1e-5))

    def linear(self, x: Value, axis: Axis) -> Value:
        weight = WeightSpec(f"linear{len(self.ops)}", (axis, x.axis), WeightRole.MATRIX)
        return self.add(Linear(self.layer, self.value(axis, x.rows), x, weight))

    def rope(self, x: Value, head_dim: int) -> Value:
        return self.add(Rope(self.layer, self.value(x.axis), x, head_dim, RopeSpec((1.0,) * (head_dim // 2))))


def llama(sizes: Sizes = SMOLLM2, fmt: str = "bf16") -> Graph:
    """A Llama forward pass."""
    b, heads = _Builder(), sizes.heads
    stream, ffn = hidden(sizes.hidden), columns("ffn", sizes.ffn)
    table = WeightSpec("embed", (fixed("tokens", sizes.vocab), stream), WeightRole.EMBEDDING)
    x = b.add(TokenEmbedding(-1, b.value(stream), table))
    for b.layer in range(sizes.layers):
        n = b.norm(x)
        q = b.linear(n, heads.queries())
        k = b.linear(n, heads.keys())
        v = b.linear(n, heads.keys())
        q, k = b.rope(q, heads.head_dim), b.rope(k, heads.head_dim)
        out = b.value(q.axis)
        seen = b.add(Attention(b.layer, out, q, k, v, heads, heads.head_dim**-0.5, sizes.window))
        o = b.linear(seen, stream)
        x = b.add(Add(b.layer, b.value(stream), x, o))
        n = b.norm(x)
        gate, up = b.linear(n, ffn), b.linear(n, ffn)
        gated = b.add(GatedActivation(b.layer, b.value(ffn), gate, up))
        down = b.linear(gated, stream)
        x = b.add(Add(b.layer, b.value(stream), x, down))
    b.layer = sizes.layers
    x = b.norm(b.add(SelectRows(b.layer, b.value(stream, WANTED), x)))
    logits = GraphOutput(b.linear(x, vocabulary(sizes.vocab)), OutputKind.LOGITS)
    given = (GraphInput(InputKind.TOKENS, TOKENS),)
    return Graph("llama", FORMATS[fmt], tuple(b.ops), given, (logits,), sizes.layers, sizes.vocab, 2048)


def whole(graph: Graph) -> tuple[Program, ...]:
    """The Program of a single core."""
    return (_program(graph, 0, graph.ops, range(graph.num_layers)),)


def pipeline(graph: Graph, stages: int) -> tuple[Program, ...]:
    """Returns the Programs of stages with equally many layers each."""
    bounds = [graph.num_layers * s // stages for s in range(stages + 1)]
    return tuple(_stage(graph, s, range(bounds[s], bounds[s + 1]), stages) for s in range(stages))


def _stage(graph: Graph, stage: int, layers: range, stages: int) -> Program:
    first, last = stage == 0, stage == stages - 1
    ops = [
        op
        for op in graph.ops
        if op.layer in layers or (first and op.layer < 0) or (last and op.layer == graph.num_layers)
    ]
    x = graph.ops[0].out
    if not first:
        ops.insert(0, Receive(layers.start, x, stage - 1))
    if not last:
        ops.append(Send(layers.stop - 1, ops[-1].out, ops[-1].out, stage + 1))
    return _program(graph, stage, tuple(ops), layers)


def _program(graph: Graph, core: int, ops: tuple[Op, ...], layers: range) -> Program:
    shards = {
        spec.name: WeightShard(spec, tuple(AxisShard(((0, n),)) for n in spec.shape))
        for op in ops
        for spec in op.weights
    }
    values = tuple({op.out.id: op.out for op in ops}.values())
    outputs = tuple(output for output in graph.outputs if output.value in values)
    return Program(core, core, 0, graph.format, ops, values, shards, {}, layers, graph.max_positions, outputs)


def with_all_reduce(programs: tuple[Program, ...], width: int, degree: int) -> tuple[Program, ...]:
    """Returns the Programs of `degree` ranks that each run the single Program with an all-reduce appended."""
    (program,) = programs
    x = Value(10_000, hidden(width))
    ops = (*program.ops, AllReduce(0, x, x))
    return tuple(replace(program, core=rank, rank=rank, ops=ops) for rank in range(degree))


def experts(count: int, top_k: int, width: int, ffn: int) -> Experts:
    """A mixture of experts of these sizes."""
    each, stream, middle = fixed("experts", count), hidden(width), columns("expert_ffn", ffn)
    x, routing = Value(0, stream), Value(1, each)
    axes = {"gate": (each, middle, stream), "up": (each, middle, stream), "down": (each, stream, middle)}
    weights = {name: WeightSpec(name, of, WeightRole.MATRIX) for name, of in axes.items()}
    return Experts(0, Value(2, stream), x, routing, **weights, top_k=top_k, ffn=ffn)
