"""The check of each instruction: its operands, and what its kind asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from corepipe.nki.core.buffers import Buffer, Space
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Recorder
from corepipe.nki.core.tensors import View
from corepipe.nki.rules.breaking import Details, Engines, Views, broken
from corepipe.nki.rules.elementwise import ELEMENTWISE_CHECKS
from corepipe.nki.rules.products import PRODUCT_CHECKS
from corepipe.nki.rules.table import RULES

Check = Callable[[Recorder, str, Views, Views, Details, Engines], None]

CHECKS: Mapping[str, Check] = {**PRODUCT_CHECKS, **ELEMENTWISE_CHECKS}
"""Checks of one kind of instruction, by its name."""

HBM, PSUM, DMA, GPSIMD = Space.HBM, Space.PSUM, Engine.DMA, Engine.GPSIMD

PARTITIONS = 128
SBUF_ELEMENTS = RULES["free_elements"].limits["v2"]
PSUM_ELEMENTS = RULES["psum_elements"].limits["v2"]
STRIDE = RULES["free_stride"].limits["v2"]
FREE_AXES = RULES["free_axes"].limits["v2"]
NOTHING: Details = {}


def check(
    recorder: Recorder,
    op: str,
    engines: Engines,
    writes: Views,
    reads: Views,
    details: Details = NOTHING,
) -> None:
    """Raises KernelError where an instruction breaks a rule of the device.

    `op` and `details` are those of Instruction.  Every instruction passes here: a legal one costs
    comparisons alone.
    """
    if (specific := CHECKS.get(op)) is not None:
        specific(recorder, op, writes, reads, details, engines)
    dma, no_psum = engines[0] is DMA, engines[0] is GPSIMD and len(engines) == 1
    for view in (*writes, *reads):
        buffer = view.buffer
        space = buffer.space
        if buffer.alias_of is not None or not _within(view, buffer):
            check_bounds(recorder, view)
        if dma:
            if space is not HBM:
                _transferred(recorder, op, view)
        elif space is HBM:
            raise broken(recorder, "memory", op, view)
        elif space is PSUM and no_psum:
            raise broken(recorder, "gpsimd_psum", op, view)
        elif not _plain(view, buffer):
            check_tile(recorder, op, view)


def _within(view: View, buffer: Buffer) -> bool:
    for (low, high), n in zip(view.region().box, buffer.shape, strict=True):
        if low < 0 or high > n:
            return False
    return True


def _plain(view: View, buffer: Buffer) -> bool:
    """Tells at a glance that a tile starts at partition 0 and is small: then it breaks no rule of tiles."""
    shape = view.shape
    if buffer.alias_of is not None or not 2 <= len(shape) <= FREE_AXES + 1:
        return False
    base, steps = view.maps[buffer.blocks]
    if base or steps[0] != 1 or shape[0] > PARTITIONS or sum(steps) != 1:
        return False
    free = shape[1] if len(shape) == 2 else prod(shape[1:])
    if len(buffer.shape) == buffer.blocks + 2:
        width = buffer.shape[-1]
    else:
        width = prod(buffer.shape[buffer.blocks + 1 :])
    return free <= PSUM_ELEMENTS and width <= STRIDE


def check_bounds(recorder: Recorder, view: View) -> None:
    """Raises KernelError where a view leaves its tensor."""
    if (outside := view.outside()) is not None:
        axis, index, length = outside
        raise broken(recorder, "bounds", "", view, found=index, axis=axis, length=length)


def check_tile(recorder: Recorder, op: str, view: View) -> None:
    """Checks the shape and the place of a tile on chip."""
    n, free = view.partitions, view.free
    if not n or not free:
        return
    if n > PARTITIONS:
        raise broken(recorder, "partitions", op, view, found=n)
    if view.space is PSUM and free > RULES["psum_elements"].limits[recorder.generation]:
        raise broken(recorder, "psum_elements", op, view, found=free)
    if free > SBUF_ELEMENTS:
        raise broken(recorder, "free_elements", op, view, found=free)
    steps = view.steps
    root = view.buffer.root
    width = prod(root.shape[root.blocks + 1 :]) * root.dtype.itemsize // view.dtype.itemsize
    if n > 1 and steps[0] != width:
        raise broken(recorder, "partition_axis", op, view)
    _start(recorder, op, view, n, view.offset // width % root.shape[root.blocks])
    _strides(recorder, op, view, steps[1:])


def _start(recorder: Recorder, op: str, view: View, count: int, start: int) -> None:
    if start and (start % 32 or count > (64 if start == 64 else 32)):
        raise broken(recorder, "start_partition", op, view, found=start)


def _strides(recorder: Recorder, op: str, view: View, steps: Sequence[int]) -> None:
    """Checks the free axes as an access pattern, in which adjacent axes are one."""
    axes: list[tuple[int, int]] = []
    for n, step in zip(view.shape[1:], steps, strict=True):
        if n == 1:
            continue
        if axes and axes[-1][1] == step * n:
            axes[-1] = (axes[-1][0] * n, step)
        else:
            axes.append((n, step))
    if len(axes) > FREE_AXES:
        raise broken(recorder, "free_axes", op, view, found=len(axes))
    for _, step in axes:
        if abs(step) > STRIDE:
            raise broken(recorder, "free_stride", op, view, found=step)


def _transferred(recorder: Recorder, op: str, view: View) -> None:
    """Checks an operand of a transfer on chip: DMA takes any access pattern, but no PSUM."""
    if view.buffer.space is PSUM:
        raise broken(recorder, "dma_psum", op, view)
    if view.shape and view.shape[0] > PARTITIONS:
        raise broken(recorder, "partitions", op, view, found=view.shape[0])
