"""Tiles of the legacy dialect: tensors and parts of them, with operators and assignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.results import Mask, Pending, Run
from corepipe.nki.isa import vector


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of the language that operators and methods of tiles are short for."""

    binary: Callable[..., Any]
    unary: Callable[..., Any]
    copy: Callable[..., Any]
    invert: Callable[..., Any]
    spread_to: Callable[..., Any]


class Tile:
    """A tensor or a part of one, or a result that has no place yet."""

    __slots__ = ("_pending", "_view")
    __array_ufunc__ = None

    functions: ClassVar[Functions]
    """They are made of tiles themselves: `elementwise` puts them here."""

    def __init__(self, view: View | None, pending: Pending | None = None) -> None:
        self._view, self._pending = view, pending

    @property
    def part(self) -> View:
        """The elements; a result that has no place yet gets a tile of its own."""
        if self._view is None:
            assert self._pending is not None
            self._view = self._pending()
        return self._view

    @property
    def shape(self) -> tuple[int, ...]:
        return self._pending.shape if self._view is None and self._pending else self.part.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._pending.dtype if self._view is None and self._pending else self.part.dtype

    @property
    def space(self) -> Space:
        return self._pending.space if self._view is None and self._pending else self.part.space

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise current().refuse("value", "the values of a tile are not known when the kernel is compiled")

    def __iter__(self) -> Any:
        return (self[i] for i in range(self.shape[0]))

    def __getitem__(self, key: Any) -> Tile:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, Tile) for k in keys):
            return rows_of(self, keys)
        return Tile(kept_partition(self.part[key]))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assigns to a part: the instruction that made `value` writes there, or it is copied."""
        assigned(kept_partition(self.part[key]), value)

    def put(self, target: View) -> None:
        """Writes the tile to a part of a tensor."""
        if self._pending is not None and self._pending.waits:
            self._pending.place(target)
            return
        source = self.part
        if source.buffer is target.buffer and source.maps == target.maps and source.shape == target.shape:
            return  # x[i] += y: the sum is there
        current().flush()
        vector.tensor_copy(target, source.fitted(target.shape))

    def reshape(self, *shape: Any) -> Tile:
        """Returns the same elements in another shape; one length may be -1."""
        wanted = [int(n) for n in (shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)]
        if -1 in wanted:
            wanted[wanted.index(-1)] = self.size // max(1, -prod(wanted))
        return Tile(self.part.reshaped(tuple(wanted)))

    def broadcast_to(self, shape: Sequence[int], **hints: Any) -> Tile:
        spread: Tile = Tile.functions.spread_to(self, shape, **hints)
        return spread

    def astype(self, dtype: Any) -> Tile:
        """Returns a copy in another type."""
        copied: Tile = Tile.functions.copy(self, dtype=dtype)
        return copied

    def expand_dims(self, axis: int | Sequence[int]) -> Tile:
        """Returns the same elements with axes of length 1 inserted."""
        return Tile(self.part.fitted(np.expand_dims(np.empty(self.shape, np.bool_), axis).shape))

    def assert_shape(self, shape: Sequence[int]) -> Tile:
        if tuple(shape) != self.shape:
            raise current().refuse("shape", f"the tile has the shape {self.shape}, not {tuple(shape)}")
        return self

    def view(self, dtype: Any) -> Tile:
        """Returns the same bytes as elements of another type of the same size."""
        kind = np.dtype(dtype)
        if kind.itemsize != self.itemsize:
            raise current().refuse(
                "view", f"elements of {self.dtype} do not have the size of those of {kind}"
            )
        part = self.part
        root = part.buffer.root
        typed = replace(part.buffer, dtype=kind, alias_of=root, data=None, written=None)
        return Tile(View(typed, part.shape, part.maps))

    def __iadd__(self, other: Any) -> Tile:
        """Adds in place: a product accumulates in PSUM, anything else is a sum on VectorE."""
        target = self.part
        pending = other._pending if isinstance(other, Tile) and target.space is Space.PSUM else None
        if pending is not None and pending.waits and pending.accumulate is not None:
            pending.add_to(target)
            return self
        total = _binary("add", self, other)
        assigned(target, total)
        return self

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return _binary("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _binary("power", other, self)

    def __mod__(self, other: Any) -> Any:
        return _binary("mod", self, other)

    def __and__(self, other: Any) -> Any:
        return _binary("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return _binary("bitwise_and", other, self)

    def __or__(self, other: Any) -> Any:
        return _binary("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return _binary("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return _binary("bitwise_xor", self, other)

    def __lshift__(self, other: Any) -> Any:
        return _binary("left_shift", self, other)

    def __rshift__(self, other: Any) -> Any:
        return _binary("right_shift", self, other)

    def __lt__(self, other: Any) -> Any:
        return _binary("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _binary("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _binary("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _binary("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _binary("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return _binary("multiply", self, -1)

    def __pos__(self) -> Tile:
        return self

    def __abs__(self) -> Any:
        return Tile.functions.unary("abs", self)

    def __invert__(self) -> Any:
        return Tile.functions.invert(self)


class Rows(Tile):
    """Rows of a tensor in HBM that a tile in SBUF names, one for each partition."""

    __slots__ = ("index",)

    def __init__(self, tensor: View, index: View) -> None:
        super().__init__(tensor)
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.index.size, *self.part.shape[1:])


def rows_of(tensor: Tile, keys: tuple[Any, ...]) -> Rows:
    """Returns the rows of a tensor that is indexed by a tile.  Raises KernelError where it is not the first
    axis of a tensor in HBM that is."""
    index, *others = keys
    if (
        tensor.space is not Space.HBM
        or not isinstance(index, Tile)
        or any(isinstance(k, Tile) for k in others)
    ):
        raise current().refuse("indirect", "a tile indexes the first axis of a tensor in HBM alone")
    rows = tensor.part[(slice(None), *others)]
    free = tuple(n for n in rows.shape[1:] if n != 1)
    return Rows(rows.fitted((rows.shape[0], *(free or (1,)))), operand(index))


def _binary(op: str, x: Any, y: Any) -> Any:
    return Tile.functions.binary(op, x, y)


def pend(
    shape: Sequence[int],
    dtype: Any,
    run: Run,
    *,
    mask: Mask | None = None,
    space: Space = Space.SBUF,
    accumulate: Run | None = None,
) -> Tile:
    """Returns the result of an instruction that `run` records once it is known where the result belongs.

    accumulate: records it so that it adds to its destination.
    """
    recorder = current()
    recorder.flush()
    pending = Pending(recorder, tuple(shape), np.dtype(dtype), space, run, mask, accumulate)
    recorder.pending = pending
    return Tile(None, pending)


def assigned(target: View, value: Any) -> None:
    """Puts a value into a part of a tensor."""
    if isinstance(value, Tile):
        value.put(target)
    else:
        current().flush()
        vector.memset(target, value)


def kept_partition(view: View) -> View:
    """Returns a view on chip with its partition axis first, where an integer index removed it."""
    if view.space is Space.HBM or view.buffer.alias_of is not None:
        return view
    along = view.maps[view.buffer.blocks][1]
    if any(along) or (view.ndim > 1 and view.shape[0] == 1):
        return view
    return view.fitted((1, *view.shape))


def operand(value: Any, mask: Mask | None = None) -> View:
    """Returns the elements of a tile for an instruction; a vector is a column of one element a partition.

    Raises KernelError where `value` is no tile or leaves its tensor.
    """
    if not isinstance(value, Tile):
        raise current().refuse("operand", f"{type(value).__name__} is no tile")
    view = value.part
    if view.ndim == 1 and view.space is not Space.HBM:
        view = view.fitted((*view.shape, 1))
    return view if mask is None else mask.crop(view)


def scalar_or_operand(value: Any, mask: Mask | None = None) -> Any:
    """Returns a number, or the elements of a tile with one for each partition."""
    if isinstance(value, Tile):
        return operand(value, mask)
    if isinstance(value, np.ndarray) and value.size == 1:
        return value.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int | float):
        return value
    raise current().refuse("operand", f"{type(value).__name__} is neither a tile nor a number")
