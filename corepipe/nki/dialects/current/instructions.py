"""`nki.isa`: the instructions with the names and arguments of the current dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import prod
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.instructions import Instruction
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View, whole
from corepipe.nki.dialects.current.tensor import NKIObject, NkiTensor, Register, integer
from corepipe.nki.dialects.current.types import DgeMode, EngineName, OobMode, PerfMode, engine_of
from corepipe.nki.isa import partitions, reductions, scalar, select, statistics, tensor, transfers, vector
from corepipe.nki.isa.operations import COMPARISONS, operation


class NkiInstruction(NKIObject):
    """A recorded instruction.  Dependences follow from the operands, so `depends_on` adds none."""

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        return self


DONE = NkiInstruction()


def _view(name: str, operand: Any) -> View:
    """Returns the view of a tensor that an instruction reads or writes."""
    if not isinstance(operand, NkiTensor):
        raise current().refuse("operand", f"{name} is a tensor, not {operand!r}")
    if operand.rows is not None:
        raise current().refuse("indirect", f"{name}: only DMA reads and writes rows by indices")
    return operand.part


def _given(operand: Any) -> Any:
    """Returns an argument as the functions of `isa` take it."""
    if isinstance(operand, NkiTensor):
        return _view("an operand", operand)
    if isinstance(operand, EngineName):
        return engine_of(operand)
    return int(operand) if isinstance(operand, Register) else operand


def _instruction(function: Callable[..., Any], *unused: str) -> Callable[..., NkiInstruction]:
    """Returns an instruction of `isa`, whose parameters are those of the dialect, as kernels call it.

    unused: arguments that say nothing new.
    """

    def called(*positional: Any, **named: Any) -> NkiInstruction:
        for name in ("name", "dtype", *unused):  # the type is the destination's; version 0.2 repeats it
            named.pop(name, None)
        given = [_given(a) for a in positional], {name: _given(a) for name, a in named.items()}
        try:
            done = function(*given[0], **given[1])
        except (AttributeError, TypeError):
            _check_tensors(function, *given)
            raise
        _wait(done, *positional, *named.values())
        return DONE

    called.__name__ = function.__name__
    return called


def _wait(done: Instruction, *operands: Any) -> None:
    """Lets an instruction depend on the memory with the indices that found its operands."""
    found_by = [v for o in operands if isinstance(o, NkiTensor) for v in o.found_by]
    if found_by:
        done.reads = (*done.reads, *(view.region() for view in found_by))


def _check_tensors(function: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raises KernelError for the first argument that is no tensor where one is needed."""
    parameters = signature(function)
    for name, value in parameters.bind(*positional, **named).arguments.items():
        if parameters.parameters[name].annotation == "View" and not isinstance(value, View):
            raise current().refuse("operand", f"{function.__name__}: {name} is a tensor, not {value!r}")


nc_transpose = _instruction(tensor.nc_transpose)
activation = _instruction(scalar.activation)
activation_reduce = _instruction(scalar.activation_reduce)
tensor_copy = _instruction(vector.tensor_copy, "dtype")
memset = _instruction(vector.memset)
reciprocal = _instruction(vector.reciprocal)
tensor_tensor = _instruction(vector.tensor_tensor)
tensor_scalar = _instruction(vector.tensor_scalar)
scalar_tensor_tensor = _instruction(vector.scalar_tensor_tensor)
tensor_reduce = _instruction(reductions.tensor_reduce, "keepdims")
tensor_partition_reduce = _instruction(reductions.tensor_partition_reduce)
tensor_scalar_reduce = _instruction(reductions.tensor_scalar_reduce)
tensor_scalar_cumulative = _instruction(reductions.tensor_scalar_cumulative)
tensor_tensor_scan = _instruction(reductions.tensor_tensor_scan)
bn_stats = _instruction(statistics.bn_stats)
bn_aggr = _instruction(statistics.bn_aggr)
max8 = _instruction(statistics.max8)
nc_find_index8 = _instruction(statistics.nc_find_index8)
nc_match_replace8 = _instruction(statistics.nc_match_replace8)
iota = _instruction(select.iota)
range_select = _instruction(select.range_select)
select_reduce = _instruction(select.select_reduce)
tensor_copy_predicated = _instruction(select.tensor_copy_predicated)
nc_stream_shuffle = _instruction(partitions.nc_stream_shuffle)
nc_n_gather = _instruction(partitions.nc_n_gather)
local_gather = _instruction(partitions.local_gather)
nonzero_with_count = _instruction(partitions.nonzero_with_count)
sequence_bounds = _instruction(partitions.sequence_bounds)


def nc_matmul(
    dst: Any,
    stationary: Any,
    moving: Any,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Sequence[int] = (),
    tile_size: Sequence[int] = (),
    perf_mode: Any = PerfMode.none,
    name: Any = None,
) -> NkiInstruction:
    tensor.nc_matmul(
        _view("dst", dst),
        _view("stationary", stationary),
        _view("moving", moving),
        accumulate=None if accumulate is None else bool(accumulate),
        is_transpose=is_transpose,
        onezero=is_stationary_onezero or is_moving_onezero,
        double_row=perf_mode in (PerfMode.double_row, "double_row"),
        tile_position=tile_position or (),
        tile_size=tile_size or (),
    )
    return DONE


def affine_select(
    dst: Any,
    pattern: Any,
    channel_multiplier: int,
    on_true_tile: Any,
    on_false_value: float,
    cmp_op: Any = "equal",
    offset: int = 0,
    name: Any = None,
) -> NkiInstruction:
    target = _view("dst", dst)
    compare = operation(cmp_op, COMPARISONS, place="affine_select: cmp_op")
    kept = None
    if current().values:
        values = select.affine_values(target.partitions, pattern, integer(offset), channel_multiplier)
        kept = COMPARISONS[compare](values, 0) != 0
    select.affine_select(target, kept, _view("on_true_tile", on_true_tile), on_false_value)
    return DONE


def dma_copy(
    dst: Any,
    src: Any,
    priority: Any = None,
    oob_mode: OobMode = OobMode.error,
    dge_mode: Any = None,
    engine: Any = None,
    name: Any = None,
) -> NkiInstruction:
    _moved(dst, src, skip=oob_mode is OobMode.skip)
    return DONE


def _moved(dst: Any, src: Any, *, skip: bool = False, add: bool = False) -> None:
    """Copies a tensor, or the rows that a vector names."""
    if isinstance(src, NkiTensor) and src.rows is not None:
        done = transfers.dma_gather(_view("dst", dst), src.part, _view("rows", src.rows), skip=skip, add=add)
    elif isinstance(dst, NkiTensor) and dst.rows is not None:
        done = transfers.dma_scatter(dst.part, _view("src", src), _view("rows", dst.rows), skip=skip, add=add)
    else:
        done = transfers.dma_copy(_view("dst", dst), _view("src", src), add=add)
    _wait(done, dst, src)


def dma_compute(
    dst: Any,
    srcs: Sequence[Any],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: OobMode = OobMode.error,
    name: Any = None,
) -> NkiInstruction:
    """Adds tensors; where one is indexed by a vector, it adds to rows of dst, or rows to dst."""
    operation(reduce_op, {"add": None}, place="dma_compute: reduce_op")
    indexed = [s for s in srcs if s.rows is not None]
    if dst.rows is not None or indexed:
        others = [s for s in srcs if s.rows is None]
        source = indexed[0] if dst.rows is None else others[0]
        _moved(dst, source, skip=oob_mode is OobMode.skip, add=True)
    else:
        transfers.dma_compute(_view("dst", dst), [_view("srcs", s) for s in srcs], scales)
    return DONE


def dma_transpose(
    dst: Any,
    src: Any,
    axes: Sequence[int] | None = None,
    priority: Any = None,
    dge_mode: DgeMode = DgeMode.unknown,
    oob_mode: OobMode = OobMode.error,
    name: Any = None,
) -> NkiInstruction:
    transfers.dma_transpose(_view("dst", dst), _view("src", src), axes, dge_mode.name)
    return DONE


def core_barrier(data: Any, cores: Any, engine: Any = EngineName.gpsimd, name: Any = None) -> NkiInstruction:
    """Does nothing on one core.  Raises KernelError where a kernel has more programs."""
    if prod(current().grid) > 1:
        raise current().refuse("missing", "nisa.core_barrier is not simulated: it joins two cores")
    return DONE


def register_alloc(x: Any = None) -> Register:
    return Register(integer(x) if x is not None else None)


def register_move(dst: Register, src: Any) -> None:
    dst.value = int(src)


def register_load(dst: Register, src: NkiTensor) -> None:
    """Reads an integer from memory, as a transfer.  Raises KernelError where no values are computed."""
    recorder = current()
    if not recorder.values:
        raise recorder.refuse("register", "register_load needs values: run the kernel with them")
    held = whole(recorder.allocate(Space.HBM, src.shape, np.int32, name="register"))
    transfers.dma_copy(held, _view("src", src))
    dst.value, dst.loaded = int(held.array().reshape(-1)[0]), (held,)


def register_store(dst: NkiTensor, src: Any) -> None:
    vector.memset(_view("dst", dst), int(src))
