"""The native executor's lowering: fuses a Program's Ops into steps for the host's kernels.

Nothing here changes the results: a fused step rounds wherever its parts would.  The cost model never sees
this; it reads the Program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from corepipe.neuron.ops import (
    Add,
    Attention,
    ElementwiseActivation,
    Function,
    GatedActivation,
    LayerNorm,
    Linear,
    Op,
    PatchEmbed,
    RMSNorm,
    Rope,
    ScaleRows,
    SelectRows,
)
from corepipe.neuron.values import RopeSpec, Value, WeightSpec


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """Linears that share an input, with the Ops before and after them, in this order.

    `norm` of x; the Linears; `function` of the result, or with `gated` of the first one's result, times the
    second's; the result times `factor`; added to `residual`; that added to `outer`.  The Ops after apply to
    one Linear, or to a gated pair, whose result is `out`; otherwise each Linear has its own result.
    """

    x: Value
    linears: tuple[Linear, ...]
    norm: RMSNorm | LayerNorm | None = None
    function: Function | None = None
    gated: bool = False
    factor: float = 1.0
    residual: Value | None = None
    outer: Value | None = None
    out: Value | None = None

    @property
    def added(self) -> tuple[Value, ...]:
        return tuple(value for value in (self.residual, self.outer) if value is not None)

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x, *self.added)

    @property
    def writes(self) -> tuple[Value, ...]:  # of a gated pair, the second needs no buffer of its own
        return (self.out,) if self.out is not None else tuple(op.out for op in self.linears)


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Attention with the per-head norms and rotations of its queries and keys.

    `wanted` selects the rows of queries and results (None: all).
    """

    op: Attention
    q: Value
    k: Value
    rope: RopeSpec | None = None
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None
    wanted: SelectRows | None = None

    @property
    def out(self) -> Value:
        return self.op.out if self.wanted is None else self.wanted.out

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.op.v)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class PatchedLinear:
    """The product of patches, which have a temporary buffer of their own."""

    op: PatchEmbed

    @property
    def patches(self) -> Value:
        return Value(-1 - self.op.out.id, self.op.weight.axes[1], self.op.out.rows)

    @property
    def reads(self) -> tuple[Value, ...]:
        return ()

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.patches, self.op.out)


@dataclass(frozen=True, slots=True)
class Plain:
    """An Op that runs as it stands."""

    op: Op

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.op.inputs

    @property
    def writes(self) -> tuple[Value, ...]:
        return () if self.op.out in self.op.inputs else (self.op.out,)


Step = FusedLinear | FusedAttention | PatchedLinear | Plain


@dataclass(slots=True)
class _Uses:
    """The maker and the readers of each value; `kind` gives how a matrix is stored."""

    ops: tuple[Op, ...]
    kind: Callable[[WeightSpec], str]
    maker: dict[int, Op] = field(init=False)
    readers: dict[int, list[Op]] = field(init=False)
    position: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.maker = {op.out.id: op for op in self.ops if op.out not in op.inputs}
        self.position = {id(op): i for i, op in enumerate(self.ops)}
        self.readers = {}
        for op in self.ops:
            for value in op.inputs:
                self.readers.setdefault(value.id, []).append(op)

    def only_reader(self, value: Value) -> Op | None:
        readers = self.readers.get(value.id, [])
        return readers[0] if len(readers) == 1 else None

    def stored_alike(self, one: Linear, other: Linear) -> bool:
        return self.kind(one.weight) == self.kind(other.weight)

    def made_before(self, value: Value, op: Op) -> bool:
        return self.position[id(self.maker[value.id])] < self.position[id(op)]


def lower(ops: tuple[Op, ...], kind: Callable[[WeightSpec], str] = lambda _spec: "") -> list[Step]:
    """Fuses Ops where possible and keeps the order of the rest.

    kind: how a matrix is stored; Linears become one step where their matrices are stored alike.
    """
    uses = _Uses(ops, kind)
    steps: list[Step] = []
    absorbed: set[int] = set()
    for op in ops:
        if id(op) in absorbed:
            continue
        step, parts = _fuse(op, uses, absorbed)
        absorbed.update(id(part) for part in parts)
        if step is not None:
            steps.append(step)
    return _select_early(steps)


def _fuse(op: Op, uses: _Uses, absorbed: set[int]) -> tuple[Step | None, list[Op]]:
    """Returns the step that starts at `op`, or None where a later step includes `op`; and the Ops that it
    includes."""
    if isinstance(op, Linear):
        return _fuse_linear(op, uses, absorbed)
    if isinstance(op, Attention):
        return _fuse_attention(op, uses), [op]
    if isinstance(op, PatchEmbed):
        return PatchedLinear(op), [op]
    if isinstance(op, (RMSNorm, LayerNorm)) and _is_linear_norm(op, uses):
        return None, [op]
    if isinstance(op, (RMSNorm, Rope)) and _feeds_attention(op, uses):
        return None, [op]
    return Plain(op), [op]


def _is_linear_norm(op: RMSNorm | LayerNorm, uses: _Uses) -> bool:
    readers = uses.readers.get(op.out.id, [])
    whole = op.groups is None and (op.gain is None or op.gain.shape[0] == op.x.width)
    return whole and bool(readers) and all(isinstance(reader, Linear) for reader in readers)


def _fuse_linear(op: Linear, uses: _Uses, absorbed: set[int]) -> tuple[Step, list[Op]]:
    """Fuses a gated pair, a Linear with the Ops after it, or all Linears of x that no such Op follows."""
    maker = uses.maker.get(op.x.id)
    norm = maker if isinstance(maker, (RMSNorm, LayerNorm)) and _is_linear_norm(maker, uses) else None
    plain = FusedLinear(norm.x if norm else op.x, (op,), norm)
    gate, pair = _gated_pair(op, uses)
    if gate is not None:
        step = replace(plain, linears=pair, function=gate.function, gated=True, out=gate.out)
        return step, [*pair, gate]
    step, followers = _with_followers(op, plain, uses)
    if followers:
        return step, [op, *followers]
    siblings = [o for o in uses.readers[op.x.id] if isinstance(o, Linear) and id(o) not in absorbed]
    alike = [o for o in siblings if o is op or (uses.stored_alike(o, op) and not _is_followed(o, uses))]
    return replace(plain, linears=tuple(alike)), list(alike)


def _is_followed(op: Linear, uses: _Uses) -> bool:
    """Returns True if the Linear gets a step of its own, with the Ops after it."""
    gate, _ = _gated_pair(op, uses)
    return gate is not None or bool(_with_followers(op, FusedLinear(op.x, (op,)), uses)[1])


def _gated_pair(op: Linear, uses: _Uses) -> tuple[GatedActivation | None, tuple[Linear, ...]]:
    """Returns the gated activation that is the only reader of this Linear and of another of the same input,
    and both Linears."""
    gate = uses.only_reader(op.out)
    if not isinstance(gate, GatedActivation) or gate.gate == gate.up:
        return None, ()
    pair = tuple(o for v in gate.inputs if isinstance(o := uses.maker.get(v.id), Linear))
    alike = len(pair) == 2 and pair[0].x == pair[1].x and pair[0].out.width == pair[1].out.width
    if not alike or not uses.stored_alike(*pair) or not all(uses.only_reader(o.out) is gate for o in pair):
        return None, ()
    return gate, pair


def _with_followers(op: Linear, step: FusedLinear, uses: _Uses) -> tuple[FusedLinear, list[Op]]:
    """Returns the Linear's step with the Ops after it: a function; or a factor and up to two sums."""
    followers: list[Op] = []
    reader = uses.only_reader(op.out)
    if isinstance(reader, ElementwiseActivation):
        return replace(step, function=reader.function, out=reader.out), [reader]
    out = op.out
    if isinstance(reader, ScaleRows) and reader.by is None:
        followers.append(reader)
        out = reader.out
        step = replace(step, factor=reader.factor, out=out)
    add, other = _add_to_earlier(out, op, uses)
    if add is None:
        return step, followers
    step = replace(step, residual=other, out=add.out)
    last, other = _add_to_earlier(add.out, op, uses)
    if last is None:
        return step, [*followers, add]
    return replace(step, outer=other, out=last.out), [*followers, add, last]


def _add_to_earlier(value: Value, op: Linear, uses: _Uses) -> tuple[Add | None, Value]:
    """Returns the Add that is the only reader of `value`, and its other operand, if that is made before
    `op`."""
    reader = uses.only_reader(value)
    if not isinstance(reader, Add) or reader.a == reader.b:
        return None, value
    other = reader.b if reader.a == value else reader.a
    return (reader, other) if uses.made_before(other, op) else (None, value)


def _feeds_attention(op: RMSNorm | Rope, uses: _Uses) -> bool:
    """Returns True if a chain norm -> rope -> attention (or rope -> attention) of single readers includes
    `op`."""
    reader = uses.only_reader(op.out)
    if isinstance(op, RMSNorm):
        per_head = isinstance(reader, Rope) and op.gain.shape[0] == reader.head_dim
        return per_head and isinstance(reader, Rope) and _feeds_attention(reader, uses)
    if not isinstance(reader, Attention):
        return False
    q, k = uses.maker.get(reader.q.id), uses.maker.get(reader.k.id)
    single = Counter(v.id for v in reader.inputs)[op.out.id] == 1
    head = reader.heads.head_dim
    return (
        single
        and isinstance(q, Rope)
        and isinstance(k, Rope)
        and q.rope == k.rope
        and q.head_dim == k.head_dim == head
        and uses.only_reader(q.out) is reader
        and uses.only_reader(k.out) is reader
    )


def _fuse_attention(op: Attention, uses: _Uses) -> FusedAttention:
    q_rope, k_rope = uses.maker.get(op.q.id), uses.maker.get(op.k.id)
    if not isinstance(q_rope, Rope) or not isinstance(k_rope, Rope) or not _feeds_attention(q_rope, uses):
        return FusedAttention(op, op.q, op.k)
    q_norm, k_norm = _head_norm(q_rope, uses), _head_norm(k_rope, uses)
    return FusedAttention(
        op,
        q_norm.x if q_norm else q_rope.x,
        k_norm.x if k_norm else k_rope.x,
        q_rope.rope,
        q_norm,
        k_norm,
    )


def _head_norm(rope: Rope, uses: _Uses) -> RMSNorm | None:
    maker = uses.maker.get(rope.x.id)
    return maker if isinstance(maker, RMSNorm) and _feeds_attention(maker, uses) else None


def _select_early(steps: list[Step]) -> list[Step]:
    """Moves the selection of rows before an attention whose other rows no step reads, and before its queries.

    That is the last attention: the input of its queries is selected as well, but later.
    """
    ops = [step.op for step in steps if isinstance(step, Plain)]
    selections = {op.x.id: op for op in ops if isinstance(op, SelectRows)}
    makers = {value.id: step for step in steps for value in step.writes}
    readers = Counter(value.id for step in steps for value in step.reads)
    for attention in [step for step in steps if isinstance(step, FusedAttention)]:
        wanted, linear = selections.get(attention.op.out.id), makers[attention.q.id]
        if wanted is None or not isinstance(linear, FusedLinear) or linear.out is not None:
            continue
        early = selections.get(linear.x.id)
        if early is not None and readers[attention.op.out.id] == readers[attention.q.id] == 1:
            steps = list(_with_wanted_queries(steps, attention, linear, early, wanted))
    return steps


def _with_wanted_queries(
    steps: Sequence[Step],
    attention: FusedAttention,
    linear: FusedLinear,
    early: SelectRows,
    wanted: SelectRows,
) -> Iterator[Step]:
    """Yields the steps with the attention's queries made from `early`'s rows; keys and values of all rows as
    before."""
    made = tuple(op for op in linear.linears if op.out == attention.q)
    others = tuple(op for op in linear.linears if op.out != attention.q)
    queries = replace(linear, x=early.out, linears=made)
    instead: dict[int, Sequence[Step]] = {
        id(linear): [replace(linear, linears=others)] if others else [],
        id(attention): [Plain(early), queries, replace(attention, wanted=wanted)],
    }
    for step in steps:
        moved = isinstance(step, Plain) and (step.op is early or step.op is wanted)
        if not moved:
            yield from instead.get(id(step), [step])


def assign_buffers(steps: list[Step]) -> tuple[list[int], dict[int, int]]:
    """Reuses the memory of activations: returns the widths of the buffers, and the buffer of each value.

    A buffer is free again after the last step that reads its value.  A step never writes a buffer that it
    reads, because the threads of one step are not ordered; except that the result of a sum may take the
    buffer of a term that no later step reads, since each element needs only the same element of that term.
    """
    last_read: dict[int, int] = {}
    for i, step in enumerate(steps):
        for value in (*step.reads, *step.writes):
            last_read[value.id] = i
    widths: list[int] = []
    buffers: dict[int, int] = {}
    free: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        ended = {value.id: value for value in (*step.reads, *step.writes) if last_read[value.id] == i}
        spare = _added_last(step, ended)
        for value in step.writes:
            if spare is not None:
                buffers[value.id] = buffers[ended.pop(spare.id).id]
                continue
            pool = free.setdefault(value.width, [])
            if not pool:
                widths.append(value.width)
                pool.append(len(widths) - 1)
            buffers[value.id] = pool.pop()
        for value in ended.values():
            if i + 1 < len(steps):
                free[value.width].append(buffers[value.id])
    return widths, buffers


def _added_last(step: Step, ended: Mapping[int, Value]) -> Value | None:
    """Returns a term that a step adds to its result, reads for nothing else, and no later step reads."""
    if not isinstance(step, FusedLinear):
        return None
    return next((value for value in step.added if value != step.x and value.id in ended), None)
