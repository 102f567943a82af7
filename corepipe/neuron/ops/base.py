"""What every Op is to those who cut, time and compute Graphs, and what they are to it.

An Op names its fields; which of them are Values and weights follows from their annotations.  Whatever a kind
of Op does not say is refused, never assumed: a group's file says it, beside what the Op means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple, Protocol, Self

import numpy.typing as npt

from corepipe.neuron.axes import Axis, AxisShard, HeadLayout
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.inputs import StepInputs
from corepipe.neuron.numerics.arithmetic import F32, I32, Matrix
from corepipe.neuron.numerics.attention import HeadVectors
from corepipe.neuron.numerics.int4 import Int4
from corepipe.neuron.ops.native_program import NativeProgram, State
from corepipe.neuron.values import GraphInput, InputKind, RopeSpec, StateSpec, Value, WeightSpec, weight_bytes


class RankContext(Protocol):
    """What a rank of a tensor group has of a Graph."""

    @property
    def rank(self) -> int: ...

    def value(self, value: Value) -> Value:
        """The rank's own Value, made earlier."""

    def new(self, value: Value, width: int) -> Value:
        """The Value that the rank makes next."""

    def width(self, axis: Axis) -> int:
        """Of the rank's part."""

    def part(self, axis: Axis) -> AxisShard:
        """Which part the rank has."""

    def heads(self, heads: HeadLayout) -> HeadLayout:
        """The rank's own heads."""


class HasHeads(Protocol):
    """A core that has some of the model's heads."""

    def of_heads(self, numbers: Sequence[float], axis: Axis) -> F32:
        """Of one number for each head of the model those of the core's heads, 0 where one is padding.

        axis: the core's queries.
        """


class SequenceRows(NamedTuple):
    """Rows of a sequence in a batch, and the blocks of its state before them (None: it begins) and after."""

    rows: slice
    before: int | None
    after: int


class ReferenceContext(HasHeads, Protocol):
    """One core during a batch, as the reference executor computes it."""

    @property
    def format(self) -> Format: ...

    @property
    def inputs(self) -> StepInputs: ...

    def __getitem__(self, value: Value) -> F32:
        """[rows, width]."""

    def weight(self, spec: WeightSpec) -> F32:
        """The core's part of a vector or a table."""

    def matrix(self, spec: WeightSpec) -> Matrix | Int4:
        """The core's part of a matrix, as it is stored."""

    def matrices(self, spec: WeightSpec) -> Sequence[Matrix | Int4]:
        """The same of each of a stack."""

    def rotation(self, rope: RopeSpec) -> tuple[F32, F32]:
        """cos and sin of the rows, [rows, rotary width / 2] each."""

    def cache(self, layer: int) -> tuple[HeadVectors, HeadVectors]:
        """Keys and values of a layer, [slots, key/value heads, head size] each, to read and to write."""

    def slots(self, table: I32, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Where the cache keeps these positions of a sequence with that block table."""

    def state(self, op: Op, shape: tuple[int, ...]) -> F32:
        """What an Op keeps of sequences, [blocks, *shape] in fp32, to read and to write."""

    def turns(self) -> Iterable[SequenceRows]:
        """The sequences of the batch, as recurrent Ops take them."""

    def exchange(self, x: Value, *, stage: bool = False) -> list[F32] | None:
        """x of every rank of the tensor group, or of the stage, in their order; None while one of them has
        not come so far."""

    def send(self, peer: int, x: F32) -> None: ...

    def receive(self, peer: int) -> F32 | None:
        """What the peer has sent, None while nothing is there."""


class Bindings(Protocol):
    """What stands for an Op's Values and weights on a core."""

    @property
    def group(self) -> Sequence[int]:
        """The cores of the tensor group."""

    @property
    def stage(self) -> Sequence[int]:
        """The cores of the stage."""

    def buffer(self, value: Value) -> int:
        """The activation buffer of a value."""

    def rows(self, spec: WeightSpec) -> npt.NDArray[Any]:
        """A table as it is stored."""

    def vector(self, spec: WeightSpec) -> F32:
        """The core's part of a vector."""

    def matrices(self, spec: WeightSpec) -> Sequence[Any]:
        """The core's part of each matrix of a stack, as native code has it."""

    def rope(self, rope: RopeSpec) -> tuple[F32, F32]:
        """cos and sin of all positions."""

    def latents(self, op: Op) -> tuple[Any, int, int]:
        """The cache of an Op's layer, the layer's number there, and the number of its block table."""

    def of_each_head(self, spec: WeightSpec, heads: int, *, turned: bool) -> Sequence[Any]:
        """The core's part of a matrix [heads * n, k] as one for each head, in the compute format: [n, k], or
        [k, n] if `turned`."""

    def state(self, op: Op) -> State:
        """Room for what an Op keeps of each sequence."""


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all operations.  `layer` is -1 before the first decoder layer, `num_layers` after the last."""

    layer: int
    out: Value

    def values(self) -> Iterator[Value]:
        """The Values that the Op reads, in the order of its fields."""
        for name in _values_of(type(self)):  # type: ignore[arg-type]  # mypy asks its instances for a hash
            part = getattr(self, name)
            if type(part) is Value:
                yield part
            elif part is not None:
                yield from part

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.values())

    def map_values(self, new: Callable[[Value], Value]) -> Self:
        """The Op with other Values to read."""
        return replace(self, **self._mapped(new))

    def _mapped(self, new: Callable[[Value], Value]) -> dict[str, Any]:
        names = _values_of(type(self))  # type: ignore[arg-type]  # as above
        parts = ((name, getattr(self, name)) for name in names)
        return {
            name: new(part) if type(part) is Value else tuple(map(new, part))
            for name, part in parts
            if part is not None
        }

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """Its weights, in the order of its fields."""
        found: list[WeightSpec] = []
        for name in _weights_of(type(self)):  # type: ignore[arg-type]  # as above
            part = getattr(self, name)
            if type(part) is WeightSpec:
                found.append(part)
            elif part is not None:
                found.extend(part)
        return tuple(found)

    @property
    def reads(self) -> InputKind | None:
        """What of the graph's own inputs the Op reads, for the rows of `out`."""
        return None

    @property
    def input(self) -> GraphInput | None:
        """The same, with the shape of what is given for a row."""
        return None if self.reads is None else GraphInput(self.reads, self.out.rows)

    def given(self) -> int:
        """Elements that the host sends for each row of `out`: of images; ids are too few to count."""
        return 0

    @property
    def state(self) -> StateSpec | None:
        """What the Op keeps of a sequence, for the steps to come."""
        return None

    @property
    def kept(self) -> int:
        """Elements that the Op keeps for each token."""
        state = self.state
        return 0 if state is None else state.per_token

    @property
    def head_layout(self) -> HeadLayout | None:
        """The heads of an attention or a scan."""
        return None

    def spread(self) -> Self:
        """The Op where the cores of a stage each have some experts: what an expert has is then whole."""
        return self

    def local(self, cut: RankContext) -> Self:
        """The Op of one rank."""
        own = self.own_fields(cut)
        return replace(self, out=cut.new(self.out, self.out_width(cut)), **self._mapped(cut.value), **own)

    def own_fields(self, _cut: RankContext) -> Mapping[str, Any]:
        """What a rank has otherwise, beside its Values."""
        return {}

    def out_width(self, cut: RankContext) -> int:
        """Of a rank's result: its part of the axis, or as wide as what it reads."""
        raise NotImplementedError(f"{type(self).__name__} has no rule for tensor parallelism")

    def sums(self) -> bool:
        """Whether the ranks each make a part of the result, which is their sum."""
        return False

    def refuses_cut(self) -> str | None:
        """Why tensor parallelism cannot cut the Op (None: it can)."""
        whole = not self.out.axis.is_cut and not self.sums()
        cut = next((value.axis.name for value in self.values() if value.axis.is_cut), None)
        return f"{type(self).__name__} needs all of {cut}" if whole and cut else None

    def contradiction(self) -> str | None:
        """What in the Op does not go together (None: all does)."""
        return None

    @property
    def device_width(self) -> int:
        """Elements of a row of the result where a device keeps it."""
        return self.out.width

    def read_bytes(self, fmt: Format) -> float:
        """Bytes of weights that a step of one token reads."""
        return float(sum(weight_bytes(spec.shape, spec.role, fmt) for spec in self.weights))

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """What the Op costs on a core, for any step."""
        raise NotImplementedError(f"{type(self).__name__} has no cost")

    def refuses(self, _fmt: Format) -> str | None:
        """Why the executors do not compute the Op in a format (None: they do)."""
        return "has neither a kernel nor a reference implementation"

    def reference(self, at: ReferenceContext) -> F32 | None:
        """The result [rows, width] in numpy; None while another core must come first."""
        raise NotImplementedError(f"{type(self).__name__} has no reference implementation")

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        """Appends the Op to a core's native program; what `lowering` fuses is appended there."""
        raise NotImplementedError(f"{type(self).__name__} has no native code")


class SameWidthOp(Op):
    """An Op whose result is as wide as the first Value that it reads."""

    __slots__ = ()

    def out_width(self, cut: RankContext) -> int:
        return cut.value(next(self.values())).width


class NewAxisOp(Op):
    """An Op that makes its result's axis: a rank its part of it."""

    __slots__ = ()

    def out_width(self, cut: RankContext) -> int:
        return cut.width(self.out.axis)


@cache
def _values_of(kind: type) -> tuple[str, ...]:
    """Names of the fields of a kind of Op that are Values to read."""
    return _fields_of(kind, "Value")


@cache
def _weights_of(kind: type) -> tuple[str, ...]:
    """Names of its fields that are weights."""
    return _fields_of(kind, "WeightSpec")


def _fields_of(kind: type, what: str) -> tuple[str, ...]:
    """Those that are annotated as that, as an optional one, or as a tuple of them."""
    forms = (what, f"{what} | None", f"tuple[{what}, ...]")
    return tuple(field.name for field in fields(kind) if field.type in forms and field.name != "out")
