"""Adapters for the native executor: each core's part of their matrices, packed for the kernels, in slots.

Numerics: x @ w.T + bias + h @ b.T, rounded once, with h = x @ a.T * scale.  x is the Linear's input in the
compute format, before it is quantised; a, b and h are rounded to that format; products and sums are of fp32,
in an order that k and the rank set.  So a row's bits depend on that row and its adapter alone.  A tensor rank
adds what its part of the matrices makes to its result, before the ranks' results are added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from corepipe.kernels import native, packing
from corepipe.neuron.compile.program import Program
from corepipe.neuron.formats import DType
from corepipe.neuron.numerics.low_rank import LowRank

if TYPE_CHECKING:  # the compiled module may be missing where nothing is executed
    from corepipe.kernels import _native

NativePart = tuple[int, int, tuple[int, int, int], float, npt.NDArray[Any], npt.NDArray[Any]]


class AdapterLayers(Protocol):
    """The matrices of an adapter by the names of the weights that it changes."""

    @property
    def layers(self) -> Mapping[str, LowRank]: ...


class AdapterCore(Protocol):
    """A core of the executor: its Program, and the weights of the native Linears, in their order."""

    @property
    def program(self) -> Program: ...

    @property
    def linears(self) -> Sequence[str]: ...


class AdapterTable:
    """The adapters of a replica's executor, each in a slot, from 0 on.

    `StepInputs.adapters` has the slot of each row.  A batch keeps the adapters that were in their slots when
    it was submitted, so that a slot may be filled and emptied at any time.
    """

    def __init__(self, executor: _native.Executor, cores: Sequence[AdapterCore]) -> None:
        self._executor = executor
        self._cores = cores

    def load(self, slot: int, adapter: AdapterLayers) -> None:
        """Puts an adapter into a slot; the memory is taken here."""
        self._executor.set_adapter(slot, bind_adapter(self._cores, adapter))

    def unload(self, slot: int) -> None:
        """Empties a slot; the memory is freed when no batch in flight reads it."""
        self._executor.set_adapter(slot, None)


def bind_adapter(cores: Sequence[AdapterCore], adapter: AdapterLayers) -> _native.Adapter:
    """Returns the adapter with each core's part of its matrices."""
    bf16 = cores[0].program.format.compute is DType.BF16
    parts = [part for number, core in enumerate(cores) for part in _parts(number, core, adapter, bf16=bf16)]
    made: _native.Adapter = native().Adapter(parts, bf16)
    return made


def _parts(number: int, core: AdapterCore, adapter: AdapterLayers, *, bf16: bool) -> Iterator[NativePart]:
    """Yields the parts of one core, for each of its Linears that the adapter changes."""
    for at, name in enumerate(core.linears):
        if (layer := adapter.layers.get(name)) is None:
            continue
        part = layer.part(*core.program.shards[name].axes)
        shape = (len(part.b), part.a.shape[1], part.rank)
        yield number, at, shape, part.scale, *packing.pack_adapter(part.a, part.b, bf16=bf16)
