"""The native executor's private lowering: a Program's ops, fused as the host likes them.

Nothing here changes what is computed: a fused op rounds wherever its parts would.  The cost model
never sees this; it reads the Program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from corepipe.neuron.graph import Op, RopeSpec, Value
from corepipe.neuron.ops import Add, Attention, Function, GatedActivation, Linear, RMSNorm, Rope


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """Linears that share an input, with the norm before them and the residual or the gate after them."""

    x: Value
    linears: tuple[Linear, ...]
    norm: RMSNorm | None = None
    residual: Value | None = None
    out: Value | None = None
    """Where a residual or a gated result goes; otherwise each Linear has its own `out`."""
    function: Function = Function.SILU
    """Of the gate."""

    @property
    def gated(self) -> bool:
        return self.out is not None and self.residual is None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def writes(self) -> tuple[Value, ...]:
        if self.gated:  # the up projection needs no buffer of its own
            return (self.out,) if self.out else ()
        return (self.out,) if self.out is not None else tuple(op.out for op in self.linears)


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Attention with the per-head norms and rotations of its queries and keys."""

    op: Attention
    q: Value
    k: Value
    rope: RopeSpec | None = None
    q_norm: RMSNorm | None = None
    k_norm: RMSNorm | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.q, self.k, self.op.v)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.op.out,)


@dataclass(frozen=True, slots=True)
class Plain:
    """An op that runs as it stands."""

    op: Op

    @property
    def reads(self) -> tuple[Value, ...]:
        return self.op.inputs

    @property
    def writes(self) -> tuple[Value, ...]:
        return () if self.op.out in self.op.inputs else (self.op.out,)


Step = FusedLinear | FusedAttention | Plain


@dataclass(slots=True)
class _Uses:
    """Who makes a value and who reads it."""

    ops: tuple[Op, ...]
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

    def made_before(self, value: Value, op: Op) -> bool:
        return self.position[id(self.maker[value.id])] < self.position[id(op)]


def lower(ops: tuple[Op, ...]) -> list[Step]:
    """Fuses what can be fused and keeps the order of the rest."""
    uses = _Uses(ops)
    steps: list[Step] = []
    absorbed: set[int] = set()
    for op in ops:
        if id(op) in absorbed:
            continue
        step, parts = _fuse(op, uses, absorbed)
        absorbed.update(id(part) for part in parts)
        if step is not None:
            steps.append(step)
    return steps


def _fuse(op: Op, uses: _Uses, absorbed: set[int]) -> tuple[Step | None, list[Op]]:
    """The step that starts at `op`, or None where a later step takes `op` in; and the ops it absorbs."""
    if isinstance(op, Linear):
        return _fuse_linear(op, uses, absorbed)
    if isinstance(op, Attention):
        return _fuse_attention(op, uses), [op]
    if isinstance(op, RMSNorm) and _is_linear_norm(op, uses):
        return None, [op]
    if isinstance(op, (RMSNorm, Rope)) and _feeds_attention(op, uses):
        return None, [op]
    return Plain(op), [op]


def _is_linear_norm(op: RMSNorm, uses: _Uses) -> bool:
    readers = uses.readers.get(op.out.id, [])
    whole = op.gain.shape[0] == op.x.width
    return whole and bool(readers) and all(isinstance(reader, Linear) for reader in readers)


def _fuse_linear(op: Linear, uses: _Uses, absorbed: set[int]) -> tuple[Step, list[Op]]:
    siblings = [o for o in uses.readers[op.x.id] if isinstance(o, Linear) and id(o) not in absorbed]
    maker = uses.maker.get(op.x.id)
    norm = maker if isinstance(maker, RMSNorm) and _is_linear_norm(maker, uses) else None
    x = norm.x if norm else op.x
    gate = _gate(siblings, uses)
    if gate is not None:
        pair = (_maker_of(gate.gate, siblings), _maker_of(gate.up, siblings))
        return FusedLinear(x, pair, norm, out=gate.out, function=gate.function), [*siblings, gate]
    if len(siblings) == 1 and (add := _residual_add(op, uses)) is not None:
        other = add.b if add.a == op.out else add.a
        return FusedLinear(x, (op,), norm, residual=other, out=add.out), [op, add]
    return FusedLinear(x, tuple(siblings), norm), list(siblings)


def _maker_of(value: Value, linears: Iterable[Linear]) -> Linear:
    return next(o for o in linears if o.out == value)


def _gate(linears: list[Linear], uses: _Uses) -> GatedActivation | None:
    """The gated activation that reads exactly these two Linears."""
    readers = {id(reader): reader for o in linears for reader in uses.readers.get(o.out.id, [])}
    if len(linears) != 2 or len(readers) != 1:
        return None
    (reader,) = readers.values()
    if not isinstance(reader, GatedActivation) or reader.gate == reader.up:
        return None
    same_width = linears[0].out.width == linears[1].out.width
    return reader if same_width and all(uses.only_reader(o.out) for o in linears) else None


def _residual_add(op: Linear, uses: _Uses) -> Add | None:
    reader = uses.only_reader(op.out)
    if not isinstance(reader, Add) or reader.a == reader.b:
        return None
    other = reader.b if reader.a == op.out else reader.a
    return reader if uses.made_before(other, op) else None


def _feeds_attention(op: RMSNorm | Rope, uses: _Uses) -> bool:
    """True where the one reader chain norm -> rope -> attention (or rope -> attention) takes it in."""
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


def assign_buffers(steps: list[Step]) -> tuple[list[int], dict[int, int]]:
    """Reuses activations' memory: widths of the buffers, and the buffer of each value.

    A buffer is free again after the last step that reads its value.  A step never writes a buffer
    that it reads, because the threads of one step are not ordered; but a residual that nobody reads
    afterwards gives its buffer to the sum, each element of which needs that element of it alone.
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
        residual = _own_residual(step)
        for value in step.writes:
            if residual is not None and ended.pop(residual.id, None) is not None:
                buffers[value.id] = buffers[residual.id]
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


def _own_residual(step: Step) -> Value | None:
    """What is added to the result of a step that reads it for nothing else."""
    return step.residual if isinstance(step, FusedLinear) and step.residual != step.x else None
