"""`nki.language`: tensors, loops, the grid, and functions that return new tiles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import LoopKind
from corepipe.nki.core.recorder import current
from corepipe.nki.dialects.current import composed, memory
from corepipe.nki.dialects.current import instructions as nisa
from corepipe.nki.dialects.current.memory import ndarray
from corepipe.nki.dialects.current.tensor import NKIObject, NkiTensor, Register, integer
from corepipe.nki.dialects.current.types import (
    DTYPES,
    PACKED,
    MemoryRegion,
    TileSize,
)
from corepipe.nki.isa.operations import BINARY, UNARY, name_of


def ds(start: Any, size: int) -> slice:
    first = integer(start)
    return slice(first, first + int(size))


def unrolled(start: Any, stop: Any = None, step: int = 1) -> range:
    """Returns a range: these loops are unrolled."""
    return range(integer(start)) if stop is None else range(integer(start), integer(stop), step)


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[int]:
    """Yields the indices of a loop that the device runs."""
    return current().loop(LoopKind.SEQUENTIAL, unrolled(start, stop, step))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Register], Any], step: int = 1) -> None:
    for index in dynamic_range(lower, upper, step):
        body_fun(Register(index))


def while_loop(init: Register, body_fun: Callable[[Register], Register]) -> None:
    condition = init
    while condition:
        condition = body_fun(Register(int(condition)))


def program_id(axis: int = 0) -> int:
    program = current().program
    return program[axis] if axis < len(program) else 0


def num_programs(axes: Any = 0) -> int:
    grid = current().grid
    chosen = range(len(grid)) if axes is None else np.atleast_1d(axes)
    return int(np.prod([grid[a] for a in chosen if a < len(grid)], dtype=np.int64))


def program_ndim() -> int:
    return len(current().grid)


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    if current().values:
        sys.stdout.write(f"{print_prefix} {tensor.part.array()}\n")


def _unary(name: str) -> Callable[..., NkiTensor]:
    """Returns a function that applies an activation function to a tile; as `op=` it is a name."""

    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        made = ndarray(x.shape, x.dtype if dtype is None else dtype)
        nisa.activation(made, name, x)
        return made

    function.__name__ = name
    return function


def _binary(name: str) -> Callable[..., NkiTensor]:
    """Returns a function of two tiles, or of a tile and a number; as `op=` it is a name."""

    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        a, b = (x, y) if isinstance(x, NkiTensor) else (y, x)
        if not isinstance(a, NkiTensor):
            raise current().refuse("operand", f"nl.{name} takes a tensor, not {x!r} and {y!r}")
        narrow = isinstance(b, NkiTensor) and b.size == b.shape[0] and a.size > b.size
        if isinstance(b, NkiTensor) and a.size == a.shape[0] and b.size > a.size:
            a, b, narrow = b, a, True
        same = not isinstance(b, NkiTensor) or a.dtype == b.dtype
        kind = dtype if dtype is not None else a.dtype if same else np.float32
        made = ndarray(a.shape, kind)
        if isinstance(b, NkiTensor) and not narrow:
            nisa.tensor_tensor(made, x, y, op=name)
        else:
            nisa.tensor_scalar(made, a, name, b, reverse0=a is not x)
        return made

    function.__name__ = name
    return function


def _reduction(name: str, scale: Callable[[int], float] | None = None) -> Callable[..., NkiTensor]:
    """Returns a function that reduces the last free axes of a tile; as `op=` it is a name."""

    def function(x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        axes = {int(a) % x.ndim for a in np.atleast_1d(axis)}
        shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
        made = ndarray(shape if len(shape) > 1 else [*shape, 1], x.dtype if dtype is None else dtype)
        nisa.tensor_reduce(made, name_of(name), x, tuple(axes))
        if scale is not None:
            nisa.tensor_scalar(made, made, "multiply", scale(x.size // made.size))
        return made

    function.__name__ = name
    return function


def _mark(name: str) -> Callable[..., NkiTensor]:
    """Returns a name that instructions take as `op=` alone."""

    def function(*_: Any, **_named: Any) -> NkiTensor:
        raise current().refuse("missing", f"nl.{name} is an op of instructions alone")

    function.__name__ = name
    return function


def names() -> dict[str, Any]:
    """Returns what kernels find in `nki.language`."""
    found: dict[str, Any] = {
        **DTYPES,
        **PACKED,
        **{region.value: region for region in MemoryRegion},
        **{name: _unary(name) for name in UNARY},
        **{name: _binary(name) for name in BINARY},
        **{name: _reduction(name) for name in ("sum", "max", "min", "prod")},
        **{name: _mark(name) for name in ("average", "prelu", "bypass")},
        **{f"{loop}_range": unrolled for loop in ("affine", "sequential", "static")},
        "range": unrolled,
        "bool": DTYPES["bool_"],
        "mean": _reduction("sum", lambda count: 1 / count),
        "MemoryRegion": MemoryRegion,
        "NKIObject": NKIObject,
        "NkiTensor": NkiTensor,
        "tile_size": TileSize(),
        "no_reorder": nullcontext,
        "is_hbm": lambda buffer: MemoryRegion(buffer).space is Space.HBM,
        "is_sbuf": lambda buffer: MemoryRegion(buffer).space is Space.SBUF,
        "is_psum": lambda buffer: MemoryRegion(buffer).space is Space.PSUM,
        "is_on_chip": lambda buffer: MemoryRegion(buffer).space is not Space.HBM,
    }
    functions = (
        *memory.FUNCTIONS, *composed.FUNCTIONS,
        ds, dynamic_range, fori_loop, while_loop, program_id, num_programs, program_ndim, device_print,
    )  # fmt: skip
    return found | {function.__name__: function for function in functions}
