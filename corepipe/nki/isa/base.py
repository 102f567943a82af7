"""The parts that all instructions share: their checks and record, their engines, operands and registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Array, Space
from corepipe.nki.core.instructions import Engine, Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.isa.operations import REDUCTIONS, computed, stored
from corepipe.nki.rules.check import check

Operand = View | float | int
"""A number, or one for each partition in a view of [P, 1]."""

VECTOR = (Engine.VECTOR,)
SCALAR = (Engine.SCALAR,)
GPSIMD = (Engine.GPSIMD,)

START = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}
"""Values of reset registers, by the operation that reduces."""


class ReduceCommand(Enum):
    """Commands to the registers of an engine, which hold a value for each partition."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


def record(
    op: str,
    engines: Sequence[Engine],
    writes: Sequence[View],
    reads: Sequence[View],
    *,
    accumulates: bool = False,
    size: View | None = None,
    details: Mapping[str, Any] | None = None,
) -> Instruction:
    """Checks an instruction against the rules of the device, records it and returns it.

    To `details` it adds the `dtypes` of reads and then writes, by name.
    """
    recorder = current()
    found: dict[str, Any] = {"dtypes": tuple(_name(v.dtype) for v in (*reads, *writes))}
    if details:
        found.update(details)
    check(recorder, op, engines, writes, reads, found)
    instruction = recorder.emit(op, engines, writes, reads, accumulates=accumulates, size=size, details=found)
    _note_writers(instruction)
    return instruction


def _note_writers(instruction: Instruction) -> None:
    """Remembers which op wrote a part of PSUM last."""
    for region in instruction.writes:
        if region.buffer.space is Space.PSUM:
            region.buffer.writers.pop(region.box, None)
            region.buffer.writers[region.box] = instruction.op


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


def chosen(
    op: str, engines: Sequence[Engine], engine: Engine | None, views: Sequence[View]
) -> tuple[Engine, ...]:
    """Returns the engines that may run an instruction: the one that the kernel names, or all that reach its
    operands.  Raises KernelError for an engine that cannot run it."""
    if engine is not None:
        if engine not in engines:
            can = ", ".join(engines)
            raise current().refuse("engine", f"{op} runs on {can}, not on {engine}")
        return (engine,)
    if Engine.GPSIMD in engines and any(v.space is Space.PSUM for v in views):
        engines = [e for e in engines if e is not Engine.GPSIMD]
    return tuple(engines)


def matched(op: str, dst: View, *sources: View) -> None:
    """Raises KernelError unless all have as many partitions and elements in each as the destination."""
    for source in sources:
        if source.shape != dst.shape and (source.partitions, source.free) != (dst.partitions, dst.free):
            raise current().refuse("shape", f"{op}: operands of shapes {source.shape} and {dst.shape} differ")


def a_partition(op: str, name: str, operand: Operand | None, data: View) -> None:
    """Raises KernelError unless an operand is a number or has one element for each partition of `data`."""
    if isinstance(operand, View) and (operand.partitions != data.partitions or operand.free != 1):
        shape = operand.shape
        raise current().refuse(
            "shape", f"{op}: {name} has the shape {shape}; it is a number or [{data.partitions}, 1]"
        )


def spread(operand: Operand, rank: int) -> Any:
    """Returns a number, or the numbers of the partitions so that they broadcast over `rank` axes, in fp32."""
    if isinstance(operand, View):
        return computed(operand).reshape(operand.partitions, *(1,) * (rank - 1))
    return np.float32(operand)


def spread_bits(operand: Operand, rank: int, dtype: np.dtype[Any]) -> Any:
    """Returns integers as `spread` does, but of an integer type."""
    if isinstance(operand, View):
        return operand.array().reshape(operand.partitions, *(1,) * (rank - 1)).astype(dtype)
    return np.asarray(int(operand)).astype(dtype)


def views_of(*operands: Operand | None) -> tuple[View, ...]:
    """Returns the operands that are in memory."""
    return tuple(o for o in operands if isinstance(o, View))


def reduced(values: Array, op: str) -> Array:
    """Returns the reduction of each partition, in fp32."""
    found: Array = REDUCTIONS[op].reduce(values.reshape(len(values), -1), axis=1)
    return found.astype(np.float32)


def accumulated(
    engine: Engine,
    values: Array | None,
    op: str,
    command: ReduceCommand,
    result: View | None,
    *,
    initial: Operand | None = None,
    negate: bool = False,
) -> None:
    """Applies a command to an engine's registers, with the values of the instruction, and reads them out."""
    recorder = current()
    if command is ReduceCommand.idle and result is not None:
        recorder.find(
            "registers", "reduce_res reads the registers, but reduce_cmd is idle: nothing sets them"
        )
    if values is None:
        return
    held = registers(engine, op, command, initial)
    count = len(values)
    if command not in (ReduceCommand.idle, ReduceCommand.reset):
        combine = REDUCTIONS[op]
        held[:count] = combine(held[:count], reduced(values, op))
    if result is not None:
        stored(-held[:count] if negate else held[:count], result)


def registers(engine: Engine, op: str, command: ReduceCommand, initial: Operand | None = None) -> Array:
    """Returns the registers of an engine, reset or loaded as the command says."""
    held: Array = current().registers.setdefault(engine, np.full(128, np.nan, np.float32))
    if command in (ReduceCommand.reset, ReduceCommand.reset_reduce):
        held[:] = START.get(op, 0.0)
    elif command is ReduceCommand.load_reduce and initial is not None:
        loaded = spread(initial, 1)
        held[: np.size(loaded) if np.ndim(loaded) else 128] = loaded
    return held
