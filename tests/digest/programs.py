"""Reads today's Programs into the neutral form of `forms`: the file to rewrite when Graphs and Ops change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from corepipe.errors import UserError
from corepipe.models.registry import Architecture, architecture
from corepipe.neuron.axes import AxisShard, HeadLayout
from corepipe.neuron.compile.compiler import compile_graph, kv_bytes_per_token, weight_bytes_by_format
from corepipe.neuron.compile.memory import CoreMemory, DeploymentLimits, measure
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import FORMATS, Format
from corepipe.neuron.graph import Graph
from corepipe.neuron.numerics.attention import alibi_slopes
from corepipe.neuron.ops import Attention, Function, Op, RowIndex, Scoring, Send
from corepipe.neuron.values import RopeSpec, Value, WeightSpec
from tests.digest.forms import Blocks, Json
from tests.digest.models import source
from tests.digest.names import neutral

SEQUENCES, TOKENS, BLOCK = 32, 2048, 32
"""Sequences and tokens of the step that a core's buffers are measured for, and positions of a KV block."""


def read(model: str, replicas: Mapping[str, Json]) -> Json:
    """Returns the entry of a model: its Programs for each {format, pipeline, tensor} that `replicas`
    names."""
    found = architecture(source(model))
    blocks = Blocks()
    read_replicas = {name: _replica(found, blocks, asked) for name, asked in replicas.items()}
    return {
        "model": _model(found.graph(FORMATS["bf16"])),
        "rotations": blocks.rotations,
        "blocks": blocks.blocks,
        "replicas": read_replicas,
    }


def _model(graph: Graph) -> Json:
    return {
        "layers": graph.num_layers,
        "vocabulary": graph.vocab_size,
        "positions": graph.max_positions,
        "token_after_token": graph.causal,
        "tied": dict(graph.tied),
    }


def _replica(model: Architecture, blocks: Blocks, asked: Json) -> Json:
    """Returns one replica's cores; {"refused": the flag} where the model cannot be cut so."""
    kept = {key: asked[key] for key in ("format", "pipeline", "tensor")}
    graph = model.graph(FORMATS[asked["format"]])
    try:
        programs = compile_graph(graph, Placement(asked["pipeline"], asked["tensor"]))
    except UserError as error:
        return {**kept, "refused": error.param}
    limits = DeploymentLimits(graph.max_positions, SEQUENCES, TOKENS, BLOCK, max_blocks=1)
    distinct = {id(program.ops): program for program in programs}  # ranks as wide as another share its Ops
    memory = dict(zip(distinct, measure(list(distinct.values()), limits), strict=True))
    cores = [_core(program, memory[id(program.ops)], blocks) for program in programs]
    return {**kept, "numbers": _format(graph.format), "cores": cores}


def _format(fmt: Format) -> Json:
    """Returns the number formats of weights, of activations, of products and of all other values."""
    return {
        "weights": fmt.weights.value,
        "activations": fmt.activations.value,
        "compute": fmt.compute.value,
        "multiplied": fmt.multiplied.value,
    }


def _core(program: Program, memory: CoreMemory, blocks: Blocks) -> Json:
    cuts: dict[str, Json] = {}
    reader = _Ops(program, blocks, cuts)
    return {
        "core": program.core,
        "stage": program.stage,
        "rank": program.rank,
        "own_layers": [program.layers.start, len(program.layers)],
        "positions": program.max_positions,
        "runs": blocks.runs((op.layer, reader.read(number, op)) for number, op in enumerate(program.ops)),
        "cuts": cuts,
        "weight_bytes": weight_bytes_by_format(program),
        "kept_bytes_per_token": kv_bytes_per_token(program),
        "block_bytes": memory.block,
        "buffer_bytes": memory.buffers,
    }


class _Ops:
    """Reads the Ops of one Program, in their order; notes in `cuts` the core's parts of axes."""

    def __init__(self, program: Program, blocks: Blocks, cuts: dict[str, Json]) -> None:
        self._program = program
        self._blocks = blocks
        self._cuts = cuts
        self._makers: dict[int, tuple[int, int]] = {}

    def read(self, number: int, op: Op) -> Json:
        kind = type(op).__name__
        neutral_op = {"op": neutral("op", kind)}
        for field in fields(op):
            part = getattr(op, field.name)
            if field.name in ("layer", "out") or part is None or part is False or part == ():
                continue
            if isinstance(op, Attention) and field.name == "alibi" and part == alibi_slopes(len(part)):
                part = True
            neutral_op[neutral("field", f"{kind}.{field.name}")] = self._part(number, op, part)
        neutral_op["out"] = _value(op.out)
        if op.state is not None:
            neutral_op["kept_per_token"] = op.state.per_token
        if not isinstance(op, Send):  # it makes no value, only sends one
            self._makers[op.out.id] = (number, op.layer)
        return neutral_op

    def _part(self, number: int, op: Op, part: object) -> Json:
        """Returns the neutral form of a field of an Op."""
        match part:
            case Value():
                maker, layer = self._makers[part.id]
                return {"back": number - maker} if op.layer - layer <= 1 else {"op": maker}
            case WeightSpec():
                return self._weight(part)
            case HeadLayout():
                return {"query": part.heads, "key_value": part.kv_heads, "elements": part.head_dim}
            case RopeSpec():
                table = {"frequencies": list(part.inv_freq), "factor": float(part.attention_factor)}
                return self._blocks.rotation(table)
            case Function():
                return neutral("function", part)
            case Scoring():
                return neutral("scoring", part)
            case RowIndex():
                return neutral("found_by", part)
            case tuple():
                return [self._part(number, op, each) for each in part]
            case bool() | int() | float() | str():
                return part
        raise TypeError(f"the digest has no form for {part!r}")

    def _weight(self, spec: WeightSpec) -> Json:
        shard = self._program.shards[spec.name]
        if shard.spec != spec:
            raise ValueError(f"the shard of {spec.name} is another weight's")
        axes = [neutral("axis", axis.name) for axis in spec.axes]
        dims = [self._dim(*dim) for dim in zip(axes, spec.shape, shard.axes, strict=True)]
        return {"tensor": spec.name, "role": neutral("role", spec.role), "dims": dims}

    def _dim(self, axis: str, size: int, part: AxisShard) -> Sequence[Json]:
        ranges = [list(each) for each in part.ranges]
        if ranges == [[0, size]]:
            return [axis, size, "whole"]
        return [axis, size, "cut" if self._cuts.setdefault(axis, ranges) == ranges else ranges]


def _value(value: Value) -> Json:
    return {
        "axis": neutral("axis", value.axis.name),
        "width": value.width,
        "rows": neutral("rows", value.rows.name),
    }
