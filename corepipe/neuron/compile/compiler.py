"""The compiler: from a Graph and a Placement to a Program for each core, with the collectives between cores.

The rules know axes and types of Ops, no architecture.  Pipeline: layers are cut into stages; a value that is
made in one stage and read in a later one is sent from neighbour to neighbour.  Expert: each core of a stage
has some experts of each mixture, and a GatherSlots combines their results.  Tensor: every dimension on an
axis that is cut takes the rank's part of it; a Linear over a cut axis gives partial sums, so an AllReduce
follows; an AllGather joins the vocabulary's columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from corepipe.errors import UserError
from corepipe.neuron.axes import Axis, AxisKind, AxisShard, HeadLayout
from corepipe.neuron.compile.placement import Placement, cut_layers, local_heads, shard_axes
from corepipe.neuron.compile.program import Program, WeightShard
from corepipe.neuron.formats import DType
from corepipe.neuron.graph import Graph
from corepipe.neuron.ops import (
    Add,
    AllGather,
    AllReduce,
    ExpertRange,
    Experts,
    GatherSlots,
    Op,
    Receive,
    Send,
)
from corepipe.neuron.values import GraphOutput, StateKind, Value, WeightSpec, stored_bytes


def compile_graph(
    graph: Graph, placement: Placement, weights_of_layers: Sequence[float] | None = None
) -> tuple[Program, ...]:
    """Returns the Programs of one replica, index stage * cores of a stage + rank.

    `weights_of_layers` balances the pipeline as `placement.cut_layers` takes it: the part before the layers,
    each layer, the part after them.  By default the bytes of weights that a step of one token reads.
    Raises UserError for a degree that the graph cannot be cut by, ValueError for a graph that breaks the
    rules of `check`.
    """
    check(graph)
    graph = _divided(graph, placement)
    plan = _Plan(graph, placement, cut_layers(weights_of_layers or bytes_read(graph), placement.pipeline))
    return tuple(program for stage in range(placement.pipeline) for program in _compile_stage(plan, stage))


def _divided(graph: Graph, placement: Placement) -> Graph:
    """Returns the graph with its experts divided as a placement asks for.  Raises UserError where it cannot
    be cut."""
    if placement.expert > 1:
        if not graph.experts:
            raise UserError(
                f"--expert {placement.expert}: {graph.name} has no experts; leave it out", "expert"
            )
        graph = replace(graph, ops=tuple(op.spread() for op in graph.ops))
    if placement.tensor > 1:
        _refuse_uncuttable(graph)
    return graph


def compile_for_timing(graph: Graph, placement: Placement) -> tuple[Program, ...]:
    """Compiles as `compile_graph`, for readers that use shapes alone, such as the cost model, and much
    faster.

    Ranks whose parts are equally wide share the Ops and weights of the first of them.  There may be more
    ranks than heads: the stack pads them with zero heads.
    """
    if placement.pipeline > 1 or placement.cores_per_stage == 1:
        return compile_graph(graph, placement)
    check(graph)
    graph = _divided(graph, placement)
    plan = _Plan(graph, placement, cut_layers(bytes_read(graph), 1), spare_ranks=True)
    first: dict[tuple[int, ...], Program] = {}
    programs = []
    for rank, axes in enumerate(plan.axes):
        widths = tuple(shard.width for shard in axes.values())
        if widths not in first:
            first[widths] = _CoreCompiler(plan, 0, rank).compile()
        programs.append(replace(first[widths], core=rank, rank=rank))
    return tuple(programs)


def check(graph: Graph) -> None:
    """Raises ValueError where a model's builder broke a rule that the compiler relies on.

    Ops are ordered by layer, a layer has at most one Op that keeps data per token, every value is made before
    it is read, and the graph's declarations are those of its Ops.
    """
    made: set[int] = set()
    layer = -1
    kept: Counter[int] = Counter()
    for op in graph.ops:
        if not layer <= op.layer <= graph.num_layers:
            raise ValueError(f"{graph.name}: ops must be in the order of their layers")
        if any(value.id not in made for value in op.values()):
            raise ValueError(f"{graph.name}: an op of layer {op.layer} reads a value that no op has made")
        if op.state is not None and op.state.kind is StateKind.TOKENS:
            kept[op.layer] += 1
            if kept[op.layer] > 1:
                raise ValueError(
                    f"{graph.name}: layer {op.layer} has more than one attention over its tokens"
                )
        if (why := op.contradiction()) is not None:
            raise ValueError(f"{graph.name}: {why}")
        layer = op.layer
        made.add(op.out.id)
    _check_declarations(graph)


def _check_declarations(graph: Graph) -> None:
    """Raises ValueError where the graph declares other inputs, outputs or rows than its Ops have."""
    for op in graph.ops:
        rows = op.out.rows
        if rows not in graph.rows:
            raise ValueError(f"{graph.name}: an op of layer {op.layer} has rows {rows.name}, not declared")
        if op.input is not None and op.input not in graph.inputs:
            raise ValueError(f"{graph.name}: an op of layer {op.layer} reads {op.reads}, not declared")
    makers = {op.out: op.layer for op in graph.ops}
    for output in graph.outputs:
        if makers.get(output.value, -1) < graph.num_layers - 1:
            raise ValueError(f"{graph.name}: {output.kind} is not made in the last layer or after it")
    if not graph.outputs:
        raise ValueError(f"{graph.name}: declares no output")


def _axes(graph: Graph) -> Iterator[Axis]:
    """Yields every axis, as often as it occurs."""
    for op in graph.ops:
        yield op.out.axis
        for spec in op.weights:
            yield from spec.axes


def bytes_read(graph: Graph) -> list[float]:
    """Returns the bytes of weights that a step of one token reads: before the layers, in each, after them."""
    totals = [0.0] * (graph.num_layers + 2)
    for op in graph.ops:
        totals[op.layer + 1] += op.read_bytes(graph.format)
    return totals


def _refuse_uncuttable(graph: Graph) -> None:
    """Raises UserError for an Op that needs the whole of an axis that is cut."""
    for op in graph.ops:
        if (why := op.refuses_cut()) is not None:
            raise UserError(f"--tensor cannot cut {graph.name}: {why}; use --pipeline instead", "tensor")


def _deferred_sums(graph: Graph) -> frozenset[int]:
    """Returns the values that need no all-reduce of their own: partial sums read by one Add only."""
    readers = Counter(value.id for op in graph.ops for value in op.values())
    partial = {op.out.id for op in graph.ops if op.sums() and readers[op.out.id] == 1}
    adds = (op for op in graph.ops if isinstance(op, Add) and {op.a.id, op.b.id} <= partial)
    return frozenset(value.id for op in adds for value in op.values())


class _Plan:
    """The data that all cores of a replica share.

    axes: of each core of a stage; stages: layers of each; ops: the graph's of each stage; deferred: values
    that stay partial sums; carried: the values sent from each stage to the next, in the order they were made.
    """

    def __init__(
        self, graph: Graph, placement: Placement, stages: tuple[range, ...], spare_ranks: bool = False
    ) -> None:
        self.graph = graph
        self.placement = placement
        self.stages = stages
        grouped = graph.format.activations is DType.INT8
        self.axes = shard_axes(_axes(graph), placement.tensor, grouped, spare_ranks, placement.expert)
        layouts = {op.head_layout for op in graph.ops if op.head_layout is not None}
        self.heads = {layout: local_heads(layout, placement.tensor) for layout in layouts}
        self.ops: list[list[Op]] = [[] for _ in stages]
        self.deferred = _deferred_sums(graph) if placement.tensor > 1 else frozenset()
        made: dict[Value, int] = {}
        last_read: dict[Value, int] = {}
        stage_of = {layer: self._stage(layer) for layer in range(-1, graph.num_layers + 1)}
        for op in graph.ops:
            stage = stage_of[op.layer]
            self.ops[stage].append(op)
            made[op.out] = stage
            last_read.update((value, stage) for value in op.values())
        self.carried = [
            [value for value, stage in made.items() if stage <= s < last_read.get(value, stage)]
            for s in range(len(stages))
        ]

    def _stage(self, layer: int) -> int:
        inside = min(max(layer, 0), self.graph.num_layers - 1)
        return next(i for i, stage in enumerate(self.stages) if inside in stage)


def _compile_stage(plan: _Plan, stage: int) -> Iterator[Program]:
    """Yields the Programs of a stage.  Ranks whose parts are equally wide run the same Ops on other
    shards."""
    known: dict[tuple[object, ...], Program] = {}
    for rank, axes in enumerate(plan.axes):
        widths = (rank % plan.placement.tensor > 0, *(shard.width for shard in axes.values()))
        if widths in known:
            yield _for_rank(known[widths], plan, rank)
        else:
            known[widths] = _CoreCompiler(plan, stage, rank).compile()
            yield known[widths]


def _for_rank(program: Program, plan: _Plan, rank: int) -> Program:
    """Returns the Program of another rank of the same stage, whose parts are equally wide."""
    ahead, axes = rank - program.rank, plan.axes[rank]

    def of_rank(op: Op) -> Op:
        match op:
            case Send() | Receive():
                return replace(op, peer=op.peer + ahead)
            case Experts(own=ExpertRange()):
                return replace(op, own=op.share(axes[op.gate.axes[0]]))
        return op

    alike = plan.placement.pipeline == 1 and plan.placement.expert == 1
    ops = program.ops if alike else tuple(map(of_rank, program.ops))
    shards = {name: _shard(shard.spec, axes) for name, shard in program.shards.items()}
    core = program.core + ahead
    return replace(program, core=core, rank=rank, ops=ops, shards=shards, axes=axes)


def _shard(spec: WeightSpec, axes: Mapping[Axis, AxisShard]) -> WeightShard:
    """Returns a rank's part of a weight."""
    return WeightShard(spec, tuple([axes[axis] for axis in spec.axes]))


class _CoreCompiler:
    """Builds the Program of one core."""

    def __init__(self, plan: _Plan, stage: int, rank: int) -> None:
        self._plan = plan
        self._stage = stage
        self._rank = rank
        self._axes = plan.axes[rank]
        self._split = plan.placement.tensor > 1
        self._local: dict[int, Value] = {}
        self._values: list[Value] = []
        self._ops: list[Op] = []
        self._shards: dict[str, WeightShard] = {}

    def compile(self) -> Program:
        plan = self._plan
        layers = plan.stages[self._stage]
        if self._stage > 0:
            self._receive(plan.carried[self._stage - 1], layers.start)
        for op in plan.ops[self._stage]:
            self._append(op)
        self._send(plan.carried[self._stage], layers.stop - 1)
        return Program(
            core=plan.placement.core(self._stage, self._rank),
            stage=self._stage,
            rank=self._rank,
            format=plan.graph.format,
            ops=tuple(self._ops),
            values=tuple(self._values),
            shards=self._shards,
            axes=self._axes,
            layers=layers,
            max_positions=plan.graph.max_positions,
            outputs=tuple(self._outputs()),
            tensor=plan.placement.tensor if plan.placement.expert > 1 else None,
        )

    def _outputs(self) -> Iterator[GraphOutput]:
        """Yields the graph's outputs that are made in this stage."""
        made = {op.out for op in self._plan.ops[self._stage]}
        for output in self._plan.graph.outputs:
            if output.value in made:
                yield GraphOutput(self._local[output.value.id], output.kind)

    def _receive(self, values: Sequence[Value], layer: int) -> None:
        peer = self._plan.placement.core(self._stage - 1, self._rank)
        for value in values:
            out = self._local[value.id] = self.new(value, self._received_width(value))
            self._ops.append(Receive(layer, out, peer))

    def _send(self, values: Sequence[Value], layer: int) -> None:
        peer = self._plan.placement.core(self._stage + 1, self._rank)
        for value in values:
            local = self._local[value.id]
            self._ops.append(Send(layer, local, local, peer))

    def _append(self, op: Op) -> None:
        """Appends the Op with local values, its weights' shards, and the collective that completes its
        result."""
        local = op.local(self)
        self._shards.update((spec.name, _shard(spec, self._axes)) for spec in local.weights)
        self._ops.append(local)
        out = local.out
        if isinstance(local, Experts) and local.own is not None:
            out = self._gathered(local)
        elif self._split and op.out.id not in self._plan.deferred:
            out = self._complete(op, local)
        self._local[op.out.id] = out

    @property
    def rank(self) -> int:
        """The rank in its tensor group."""
        return self._rank % self._plan.placement.tensor

    def value(self, value: Value) -> Value:
        """Returns the core's own Value for a Value of the graph."""
        return self._local[value.id]

    def new(self, value: Value, width: int) -> Value:
        """Returns the Value that the core makes next."""
        axis = value.axis if width == value.axis.width else value.axis._replace(width=width)
        self._values.append(Value(len(self._values), axis, value.rows))
        return self._values[-1]

    def width(self, axis: Axis) -> int:
        """Returns the width of the core's part of an axis."""
        return self._axes[axis].width

    def part(self, axis: Axis) -> AxisShard:
        """Returns the core's part of an axis."""
        return self._axes[axis]

    def heads(self, heads: HeadLayout) -> HeadLayout:
        """Returns the layout of the core's own heads of an attention."""
        return self._plan.heads[heads]

    def _gathered(self, local: Experts) -> Value:
        """Appends the sum of the results of all cores' experts."""
        shares = [axes[local.gate.axes[0]].ranges[0] for axes in self._plan.axes]
        bounds = (0, *(start + count for start, count in shares))
        total = self.new(local.out, local.x.width)
        mixture = replace(local, own=None)
        self._ops.append(GatherSlots(local.layer, total, local.out, local.routing, mixture, bounds))
        return total

    def _complete(self, op: Op, local: Op) -> Value:
        """Sums partial products; gathers the columns of the vocabulary."""
        out = local.out
        deferred = self._plan.deferred
        if op.sums() or (deferred and any(value.id in deferred for value in op.values())):
            total = self.new(out, out.width)
            self._ops.append(AllReduce(local.layer, total, out))
            return total
        if _makes_columns(op):
            group = self._plan.axes[: self._plan.placement.tensor]
            widths = tuple(axes[op.out.axis].width for axes in group)
            gathered = self.new(out, sum(widths))
            self._ops.append(AllGather(local.layer, gathered, out, widths))
            return gathered
        return out

    def _received_width(self, value: Value) -> int:
        """Returns the width of a value that the previous stage sends: gathered columns are whole, other
        values are cut."""
        return value.width if value.axis.kind is AxisKind.VOCABULARY else self._axes[value.axis].width


def _makes_columns(op: Op) -> bool:
    """Returns True if each rank makes its columns of the vocabulary."""
    kinds = (value.axis.kind for value in op.values())
    return op.out.axis.kind is AxisKind.VOCABULARY and AxisKind.VOCABULARY not in kinds


def weight_bytes_by_format(program: Program) -> dict[str, int]:
    """Returns the bytes of the weights that a core holds, by number format."""
    total: Counter[DType] = Counter()
    for shard in program.shards.values():
        total.update(stored_bytes(shard.shape, shard.spec.role, program.format))
    return {dtype.value: size for dtype, size in sorted(total.items())}


def kv_bytes_per_token(program: Program) -> int:
    """Returns the bytes of keys and values that a core keeps for one token: all its layers, in the compute
    format."""
    return sum(op.kept for op in program.ops) * program.format.compute.bytes


def state_bytes(program: Program) -> int:
    """Returns the bytes of the states that a core keeps for one sequence, in fp32."""
    kept = (op.state.per_sequence for op in program.ops if op.state is not None)
    return sum(kept) * DType.FP32.bytes
