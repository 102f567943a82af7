"""`nki.language`: tensors, loops, the grid, and functions that return new tiles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import LoopKind
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import whole
from corepipe.nki.dialects.current import instructions as nisa
from corepipe.nki.dialects.current.tensor import NKIObject, NkiTensor, Register, integer
from corepipe.nki.dialects.current.types import (
    DTYPES,
    PACKED,
    MemoryRegion,
    TileSize,
    dtype_of,
)
from corepipe.nki.isa.operations import BINARY, UNARY, name_of


def ndarray(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """Returns a new tensor.  address: (partition, byte of a partition)."""
    region = MemoryRegion(buffer)
    made = current().allocate(region.space, tuple(int(n) for n in shape), dtype_of(dtype), name=name or "")
    if address is not None:
        made.address = int(address[1])
    return NkiTensor(whole(made), region, name or "")


def full(
    shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    made = ndarray(shape, dtype, buffer, name)
    if made.on_chip:
        nisa.memset(made, fill_value)
    else:
        _filled(made, fill_value)
    return made


def _filled(tensor: NkiTensor, value: Any) -> None:
    """Fills a tensor in HBM from a tile of the value."""
    flat = tensor.reshape((tensor.size,))
    width = min(tensor.size, 2048)
    tile = full((1, width), value, tensor.dtype)
    for start in range(0, tensor.size, width):
        count = min(width, tensor.size - start)
        nisa.dma_copy(flat[start : start + count], tile[:, :count])


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "") -> NkiTensor:
    return full(shape, 1, dtype, buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    return ndarray(x.shape, x.dtype if dtype is None else dtype, buffer or x.buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    return zeros(x.shape, x.dtype if dtype is None else dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """Returns a tensor in HBM that holds a numpy array."""
    if isinstance(constant, str):
        raise current().refuse("operand", "shared_constant takes an array; load the file by numpy first")
    return NkiTensor(whole(current().give("constant", np.asarray(constant))), MemoryRegion.shared_hbm)


def shared_identity_matrix(n: int, dtype: Any = np.uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """Returns an identity matrix in SBUF, loaded from HBM."""
    kind = dtype_of(dtype)
    made = dst if dst is not None else ndarray((n, n), kind)
    nisa.dma_copy(made, shared_constant(np.eye(n, dtype=np.float32).astype(kind)))
    return made


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


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    made = ndarray(src.shape, src.dtype if dtype is None else dtype)
    nisa.dma_copy(made, src)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> None:
    nisa.dma_copy(dst, value)


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
        ndarray, full, zeros, ones, empty_like, zeros_like, shared_constant, shared_identity_matrix, load,
        store, ds, dynamic_range, fori_loop, while_loop, program_id, num_programs, program_ndim, device_print,
    )  # fmt: skip
    return found | {function.__name__: function for function in functions}
