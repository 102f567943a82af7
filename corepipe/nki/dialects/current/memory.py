"""Tensors of the current dialect in the memories, and how kernels make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import whole
from corepipe.nki.dialects.current import instructions as nisa
from corepipe.nki.dialects.current.tensor import NkiTensor
from corepipe.nki.dialects.current.types import MemoryRegion, dtype_of
from corepipe.nki.rules.memory import check_address


def ndarray(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = "", address: Any = None
) -> NkiTensor:
    """Returns a new tensor.  address: (partition, byte of a partition)."""
    region = MemoryRegion(buffer)
    made = _allocated(region, tuple(int(n) for n in shape), dtype_of(dtype), name or "")
    if address is not None:
        made.address = int(address[1])
        check_address(current(), made, made.address)
    return NkiTensor(whole(made), region, name or "")


def _allocated(region: MemoryRegion, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> Buffer:
    """Returns a new buffer; one in shared HBM is that of the first program which came to it."""
    recorder = current()
    if not recorder.program or region.space is not Space.HBM or region is MemoryRegion.private_hbm:
        return recorder.allocate(region.space, shape, dtype, name=name)
    counts = recorder.constants.setdefault("shared tensors", {})
    number = counts[recorder.program] = counts.get(recorder.program, 0) + 1
    key = ("shared tensor", number)
    if key not in recorder.constants:
        recorder.constants[key] = recorder.allocate(region.space, shape, dtype, name=name)
    shared: Buffer = recorder.constants[key]
    return shared


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


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    made = ndarray(src.shape, src.dtype if dtype is None else dtype)
    nisa.dma_copy(made, src)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> None:
    nisa.dma_copy(dst, value)


FUNCTIONS = (
    ndarray, full, zeros, ones, empty_like, zeros_like, shared_constant, shared_identity_matrix, load, store,
)  # fmt: skip
