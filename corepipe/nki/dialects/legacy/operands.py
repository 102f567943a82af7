"""Names of engines and commands, and the operands of an instruction as its mask leaves them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import current
from corepipe.nki.core.tensors import View
from corepipe.nki.dialects.legacy.results import Mask
from corepipe.nki.dialects.legacy.tiles import Tile, operand, pend, scalar_or_operand


class EngineName(IntEnum):
    """The engines by the numbers that kernels see."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    vector = 5
    sync = 6


class ReduceName(IntEnum):
    """Commands to the registers of an engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3


class NcVersion(IntEnum):
    """Generations of NeuronCores."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class DgeMode(IntEnum):
    """Ways to make the descriptors of a transfer."""

    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3


class OobMode(IntEnum):
    """Effects of an index outside of its tensor."""

    error = 0
    skip = 1


def engine_of(name: Any) -> Engine | None:
    """Returns the engine that a kernel names; None leaves the choice to the compiler."""
    if name is None or int(name) == EngineName.unknown:
        return None
    return Engine(EngineName(int(name)).name)


def get_nc_version() -> Any:
    """Returns the generation of the core."""
    return NcVersion(int(current().generation[1:]))


class Operands:
    """The operands of one instruction: cropped by its mask, numbers as they are."""

    def __init__(self, data: Any, mask: Any) -> None:
        self.whole = operand(data)
        self.mask = Mask.of(mask, self.whole.shape)
        self.data = self.whole if self.mask is None else operand(data, self.mask)

    def view(self, value: Any) -> View:
        """Returns another tile of the same shape, or with axes of length 1."""
        return operand(value, self.mask)

    def number(self, value: Any) -> Any:
        """Returns a number, or a view of one number a partition."""
        if isinstance(value, Tile) and value.ndim < self.whole.ndim and self.mask is not None:
            return scalar_or_operand(value.reshape(value.shape[0], *(1,) * (self.whole.ndim - 1)), self.mask)
        return scalar_or_operand(value, self.mask)

    def result(self, dtype: Any, run: Any) -> Tile:
        kind = dtype if dtype is not None else self.whole.dtype
        return pend(self.whole.shape, kind, run, mask=self.mask)
