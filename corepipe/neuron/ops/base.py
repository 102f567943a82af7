"""The base class of Ops, and the protocols of the compiler and the native executor that its methods receive.

An Op names its fields; their annotations tell which of them are Values and which are weights.  A rule that a
kind of Op does not define is refused and never assumed; the file of its group defines it, beside the meaning
of the Op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy.typing as npt

from corepipe.neuron.axes import Axis, AxisShard, HeadLayout
from corepipe.neuron.chips.engines import Cost
from corepipe.neuron.chips.rates import CoreRates
from corepipe.neuron.formats import Format
from corepipe.neuron.numerics.arithmetic import F32
from corepipe.neuron.ops.costs import Passes, elementwise_cost
from corepipe.neuron.values import GraphInput, InputKind, RopeSpec, StateSpec, Value, WeightSpec, weight_bytes

if TYPE_CHECKING:  # the compiled module may be missing where nothing is executed
    from corepipe.kernels import _native

    NativeProgram = _native.Program
else:
    NativeProgram = Any


class RankContext(Protocol):
    """One rank of a tensor group while the compiler builds its Program: its Values, and its parts of axes and
    heads."""

    @property
    def rank(self) -> int: ...

    def value(self, value: Value) -> Value:
        """Returns the rank's own Value for a Value of the graph; it was made earlier."""

    def new(self, value: Value, width: int) -> Value:
        """Returns the Value that the rank makes next."""

    def width(self, axis: Axis) -> int:
        """Returns the width of the rank's part of an axis."""

    def part(self, axis: Axis) -> AxisShard:
        """Returns the rank's part of an axis."""

    def heads(self, heads: HeadLayout) -> HeadLayout:
        """Returns the layout of the rank's own heads."""


class Bindings(Protocol):
    """Buffers, weights and caches of a core, by the Op's Values and weights."""

    @property
    def group(self) -> Sequence[int]:
        """The cores of the tensor group."""

    @property
    def stage(self) -> Sequence[int]:
        """The cores of the stage."""

    def buffer(self, value: Value) -> int:
        """Returns the number of the activation buffer of a value."""

    def rows(self, spec: WeightSpec) -> npt.NDArray[Any]:
        """Returns a table as it is stored."""

    def vector(self, spec: WeightSpec) -> F32:
        """Returns the core's part of a vector."""

    def matrices(self, spec: WeightSpec) -> Sequence[_native.Matrix]:
        """Returns the core's part of each matrix of a stack, as native matrices."""

    def rope(self, rope: RopeSpec) -> tuple[F32, F32]:
        """Returns cos and sin of all positions."""

    def latents(self, op: Op) -> tuple[_native.KVCache, int, int]:
        """Returns the cache of an Op's layer, the layer's number in it, and the number of its block table."""

    def of_each_head(self, spec: WeightSpec, heads: int, *, turned: bool) -> Sequence[_native.Matrix]:
        """Returns the core's part of a matrix [heads * n, k] as one matrix per head, in the compute format:
        [n, k], or [k, n] if `turned`."""

    def state(self, op: Op) -> tuple[_native.StateCache, int]:
        """Returns the cache and the offset where an Op keeps its part of each sequence's state."""


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all operations.  `layer` is -1 before the first decoder layer, `num_layers` after the last.

    passes: over the elements of the result, for an Op that costs nothing else.
    """

    passes: ClassVar[Passes | None] = None

    layer: int
    out: Value

    def values(self) -> Iterator[Value]:
        """Yields the Values that the Op reads, in the order of its fields."""
        for name in _values_of(type(self)):  # type: ignore[arg-type]  # mypy asks its instances for a hash
            part = getattr(self, name)
            if type(part) is Value:
                yield part
            elif part is not None:
                yield from part

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.values())

    def _mapped(self, new: Callable[[Value], Value]) -> dict[str, Any]:
        """Returns the fields of the input Values, with `new` of each."""
        names = _values_of(type(self))  # type: ignore[arg-type]  # as above
        parts = ((name, getattr(self, name)) for name in names)
        return {
            name: new(part) if type(part) is Value else tuple(map(new, part))
            for name, part in parts
            if part is not None
        }

    @property
    def weights(self) -> tuple[WeightSpec, ...]:
        """The weights of the Op, in the order of its fields."""
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
        """The kind of the graph's own inputs that the Op reads, for the rows of `out` (None: none)."""
        return None

    @property
    def input(self) -> GraphInput | None:
        """The graph's input that the Op reads, with the shape of one row (None: none)."""
        return None if self.reads is None else GraphInput(self.reads, self.out.rows)

    def given(self) -> int:
        """Returns the elements that the host sends for each row of `out`: those of images; token ids are too
        few to count."""
        return 0

    @property
    def state(self) -> StateSpec | None:
        """The data of a sequence that the Op keeps for later steps."""
        return None

    @property
    def kept(self) -> int:
        """Elements that the Op keeps per token."""
        state = self.state
        return 0 if state is None else state.per_token

    @property
    def head_layout(self) -> HeadLayout | None:
        """The heads of an attention or a scan: its field `heads`."""
        return getattr(self, "heads", None)

    def spread(self) -> Self:
        """Returns the Op for stages whose cores each hold some experts: each expert is then whole."""
        return self

    def local(self, cut: RankContext) -> Self:
        """Returns the Op of one rank."""
        own = self.own_fields(cut)
        return replace(self, out=cut.new(self.out, self.out_width(cut)), **self._mapped(cut.value), **own)

    def own_fields(self, cut: RankContext) -> Mapping[str, Any]:
        """Returns the fields, beside the Values, that differ on a rank."""
        return {} if self.head_layout is None else {"heads": cut.heads(self.head_layout)}

    def out_width(self, cut: RankContext) -> int:
        """Returns the width of a rank's result: its part of the axis, or the width of its input."""
        raise NotImplementedError(f"{type(self).__name__} has no rule for tensor parallelism")

    def sums(self) -> bool:
        """Returns True if each rank makes a partial sum of the result."""
        return False

    def refuses_cut(self) -> str | None:
        """Returns why tensor parallelism cannot cut the Op (None: it can)."""
        whole = not self.out.axis.is_cut and not self.sums()
        cut = next((value.axis.name for value in self.values() if value.axis.is_cut), None)
        return f"{type(self).__name__} needs all of {cut}" if whole and cut else None

    def contradiction(self) -> str | None:
        """Returns which fields of the Op contradict each other (None: none do)."""
        return None

    @property
    def device_width(self) -> int:
        """Elements of a row of the result in a device's memory."""
        return self.out.width

    def read_bytes(self, fmt: Format) -> float:
        """Returns the bytes of weights that a step of one token reads."""
        return float(sum(weight_bytes(spec.shape, spec.role, fmt) for spec in self.weights))

    def cost(self, fmt: Format, rates: CoreRates) -> Cost:
        """Returns the cost of the Op on a core, for any step: by default that of its `passes`."""
        if self.passes is None:
            raise NotImplementedError(f"{type(self).__name__} has no cost")
        return elementwise_cost(self.out, self.passes, fmt, rates)

    def refuses(self, _fmt: Format) -> str | None:
        """Returns why no kernel computes the Op in a format (None: one does)."""
        return "has no kernel" if type(self).emit is Op.emit else None

    def emit(self, native: NativeProgram, at: Bindings) -> None:
        """Appends the Op to a core's native program.  Ops that `lowering` fuses are appended there
        instead."""
        raise NotImplementedError(f"{type(self).__name__} has no native code")


class SameWidthOp(Op):
    """An Op whose result is as wide as the first Value that it reads."""

    __slots__ = ()

    def out_width(self, cut: RankContext) -> int:
        return cut.value(next(self.values())).width


class NewAxisOp(Op):
    """An Op whose result has an axis of its own; each rank makes its part of that axis."""

    __slots__ = ()

    def out_width(self, cut: RankContext) -> int:
        return cut.width(self.out.axis)


class Transfer(Op):
    """An Op that exchanges its Value with other cores."""

    __slots__ = ()


@cache
def _values_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields of a kind of Op that are input Values."""
    return _fields_of(kind, "Value")


@cache
def _weights_of(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields of a kind of Op that are weights."""
    return _fields_of(kind, "WeightSpec")


def _fields_of(kind: type, what: str) -> tuple[str, ...]:
    """Returns the names of the fields annotated as `what`, as an optional one, or as a tuple of them."""
    forms = (what, f"{what} | None", f"tuple[{what}, ...]")
    return tuple(field.name for field in fields(kind) if field.type in forms and field.name != "out")
