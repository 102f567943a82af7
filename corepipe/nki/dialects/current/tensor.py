"""Tensors of the current dialect: views of buffers that kernels slice, reshape and index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import get_annotations
from math import prod
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.errors import KernelError
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View, alias, strided
from corepipe.nki.dialects.current.types import MemoryRegion, dtype_of


class NKIObject:
    """The base of objects that kernels pass around."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes fields of attributes without annotations too, for kernels whose dataclasses have them."""
        super().__init_subclass__(**options)
        annotations = get_annotations(cls)
        plain = int | float | str | bool | None
        for name, value in list(cls.__dict__.items()):
            if not name.startswith("_") and name not in annotations and isinstance(value, plain):
                annotations[name] = Any
        cls.__annotations__ = annotations

    def __init__(self, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(self, name, value)


class Register(NKIObject):
    """A register of an engine, which holds an integer; None before anything is moved into it.

    loaded: the memory that it was loaded into, for the instructions that wait for it.
    """

    def __init__(self, value: int | None = None, loaded: tuple[View, ...] = ()) -> None:
        self.value, self.loaded = value, loaded

    def __index__(self) -> int:
        if self.value is None:
            raise current().refuse("register", "a register is read that nothing was moved into")
        return self.value

    __int__ = __index__

    def __bool__(self) -> bool:
        return self.__index__() != 0


class NkiTensor(NKIObject):
    """A tensor, or a part of one.

    rows: indices of the rows that the first axis stands for, in tensors that are indexed by a vector.
    found_by: memory with indices that were read to find the part.
    """

    __array_ufunc__ = None

    def __init__(
        self,
        part: View,
        buffer: MemoryRegion,
        name: str = "",
        rows: NkiTensor | None = None,
        found_by: tuple[View, ...] = (),
    ) -> None:
        self.part, self.buffer, self.name, self.rows, self.found_by = part, buffer, name, rows, found_by

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape if self.rows is None else (self.rows.part.size, *self.part.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.part.dtype

    @property
    def ndim(self) -> int:
        return self.part.ndim

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return self.part.steps

    @property
    def offset(self) -> int:
        return self.part.offset

    @property
    def on_chip(self) -> bool:
        return self.part.space is not Space.HBM

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.name or 'tensor'}{list(self.shape)} {self.dtype} in {self.buffer}"

    def is_contiguous(self) -> bool:
        """Tells whether the elements follow one another; on chip, those of a partition."""
        count = 1
        axes = list(zip(self.shape, self.strides, strict=True))[1 if self.on_chip else 0 :]
        for n, step in reversed(axes):
            if n != 1 and step != count:
                return False
            count *= n
        return True

    def get_pattern(self) -> list[list[int]]:
        return [[step, n] for step, n in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        return self.rows is not None

    def _with(self, part: View) -> NkiTensor:
        if self.rows is not None:
            raise current().refuse("indirect", "a tensor that is indexed by a vector has no further views")
        return NkiTensor(part, self.buffer, self.name, None, self.found_by)

    def __getitem__(self, key: Any) -> NkiTensor:
        """Returns a part: on chip it keeps the partition axis and at least one other, in HBM at least one."""
        keys = _completed(key, self.part.shape)
        if self.on_chip:
            keys[0] = _kept(keys[0])
        numbers = [i for i, k in enumerate(keys) if not isinstance(k, slice)]
        missing = (2 if self.on_chip else 1) - (len(keys) - len(numbers))
        for i in numbers[len(numbers) - max(0, missing) :]:
            keys[i] = _kept(keys[i])
        return self._with(self.part[tuple(keys)])

    def __setitem__(self, key: Any, value: Any) -> None:
        raise current().refuse(
            "assignment", "tensors are not assigned to: an instruction writes to its dst, such as tensor_copy"
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        keys: list[Any] = [slice(None)] * self.ndim
        keys[dim] = slice(int(start), int(end), step)
        return self._with(self.part[tuple(keys)])

    def select(self, dim: int, index: Any) -> NkiTensor:
        """Removes an axis: an index, a register or a tensor of one element selects."""
        keys: list[Any] = [slice(None)] * self.ndim
        keys[dim] = integer(index)
        found = self._with(self.part[tuple(keys)])
        found.found_by += _memory_of(index)
        return found

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Lets each partition stand for the row that its index names."""
        if dim != 0 or self.on_chip or self.rows is not None:
            raise current().refuse("indirect", "vector_select takes the first axis of a tensor in HBM")
        return NkiTensor(self.part, self.buffer, self.name, vector_offset)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        if sorted(dims) != list(range(self.ndim)) or (self.on_chip and dims[0] != 0):
            raise current().refuse("view", f"permute({tuple(dims)}) of a tensor of shape {self.shape}")
        return self._with(self.part.transposed(tuple(dims)))

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        if self.shape[dim] != 1 or (self.on_chip and dim == 0):
            raise current().refuse("view", f"broadcast of axis {dim} of a tensor of shape {self.shape}")
        shape = self.shape
        return self._with(self.part.repeated((*shape[:dim], size, *shape[dim + 1 :])))

    def expand_dim(self, dim: int) -> NkiTensor:
        return self._with(self.part[(slice(None),) * (dim % (self.ndim + 1)) + (None,)])

    def squeeze_dim(self, dim: int) -> NkiTensor:
        if self.shape[dim] != 1:
            raise current().refuse("view", f"squeeze_dim({dim}) of a tensor of shape {self.shape}")
        return self.select(dim, 0)

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        try:
            return self._with(self.part.reshaped(_inferred(shape, self.size)))
        except KernelError as error:
            raise current().refuse("view", str(error)) from None

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        dim %= self.ndim
        inner = _inferred(shape, self.shape[dim])
        return self.reshape((*self.shape[:dim], *inner, *self.shape[dim + 1 :]))

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        start, end = start_dim % self.ndim, end_dim % self.ndim + 1
        return self.reshape((*self.shape[:start], prod(self.shape[start:end]), *self.shape[end:]))

    def rearrange(
        self,
        src_pattern: Sequence[Any],
        dst_pattern: Sequence[Any],
        fixed_sizes: Mapping[str, int] | None = None,
    ) -> NkiTensor:
        """Splits, reorders and joins axes by name: ("b", ("h", "w")) to ("b", "w", "h")."""
        sizes, split = dict(fixed_sizes or {}), []
        for group, n in zip(src_pattern, self.shape, strict=True):
            names = (group,) if isinstance(group, str) else tuple(group)
            known = prod(sizes.get(name, 1) for name in names)
            for name in names:
                sizes.setdefault(name, n // known)
            split += list(names)
        groups = [(g,) if isinstance(g, str) else tuple(g) for g in dst_pattern]
        order = [split.index(name) for group in groups for name in group]
        apart = self.reshape([sizes[name] for name in split]).permute(order)
        return apart.reshape([prod(sizes[name] for name in group) for group in groups])

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """Returns a part by [step, count] of each axis, in elements of the whole tensor.

        scalar_offset: an index that moves the part along `indirect_dim`; it is read now.  vector_offset: the
        indices along that axis for which the first axis of the pattern stands.
        """
        kind = self.dtype if dtype is None else dtype_of(dtype)
        start = self.part.offset * self.dtype.itemsize // kind.itemsize + int(offset or 0)
        stride = self.strides[indirect_dim]
        if scalar_offset is not None:
            start += integer(scalar_offset) * stride
        steps, counts = [int(s) for s, _ in pattern], [int(n) for _, n in pattern]
        if vector_offset is not None:
            steps[0], counts[0] = stride, self.shape[indirect_dim]
        part = strided(_typed(self.part.buffer, kind), tuple(counts), tuple(steps), start)
        found_by = self.found_by + _memory_of(scalar_offset)
        return NkiTensor(part, self.buffer, self.name, vector_offset, found_by)

    def view(self, dtype: Any) -> NkiTensor:
        """Returns the same bytes as elements of another type; the last axis grows or shrinks."""
        kind, size = dtype_of(dtype), self.dtype.itemsize
        steps = [s * size // kind.itemsize for s in self.strides[:-1]]
        shape = (*self.shape[:-1], self.shape[-1] * size // kind.itemsize)
        if self.shape[-1] * size % kind.itemsize or (kind.itemsize != size and self.strides[-1] != 1):
            raise current().refuse("view", f"the last axis of {self!r} does not hold elements of {kind}")
        last = self.strides[-1] if kind.itemsize == size else 1
        part = strided(
            _typed(self.part.buffer, kind), shape, (*steps, last), self.offset * size // kind.itemsize
        )
        return self._with(part)

    reinterpret_cast = view

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        raise current().refuse("indirect", "tensor indirection (.indirect) is not simulated")


def _typed(buffer: Buffer, dtype: np.dtype[Any]) -> Buffer:
    """Returns the root of a buffer, in another type if need be."""
    root = buffer.root
    if dtype == root.dtype:
        return root
    kept = root.shape[:1] if root.space is not Space.HBM else ()
    width = prod(root.shape[len(kept) :]) * root.dtype.itemsize // dtype.itemsize
    return alias(root, (*kept, width), dtype)


def integer(index: Any) -> int:
    """Returns an index: a number, a register, or a tensor of one element, which is read now."""
    if isinstance(index, NkiTensor):
        if not current().values:
            return 0
        return int(index.part.array().reshape(-1)[0])
    return int(index)


def _memory_of(index: Any) -> tuple[View, ...]:
    """Returns the memory that an index is in."""
    if isinstance(index, NkiTensor):
        return (index.part,)
    return index.loaded if isinstance(index, Register) else ()


def _kept(key: Any) -> Any:
    """Returns a slice of one element for a number."""
    return key if isinstance(key, slice) else slice(int(key), int(key) + 1)


def _completed(key: Any, shape: tuple[int, ...]) -> list[Any]:
    """Returns one key for each axis, negative numbers counted from the end."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(shape) - len(keys) + 1)
    if len(keys) > len(shape):
        raise current().refuse("bounds", f"{len(keys)} indices for a tensor of shape {shape}")
    keys += [slice(None)] * (len(shape) - len(keys))
    return [k if isinstance(k, slice) else _from_end(k, n) for k, n in zip(keys, shape, strict=True)]


def _from_end(key: Any, n: int) -> int:
    index = integer(key)
    return index + n if index < 0 else index


def _inferred(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Returns a shape, of which one length may be -1."""
    lengths = [int(n) for n in shape]
    if -1 in lengths:
        lengths[lengths.index(-1)] = size // -prod(lengths)
    return tuple(lengths)
