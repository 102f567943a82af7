"""Safetensors of which some weights are quantised: the base of the readers of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import finite
from corepipe.models.checkpoints.quantization import Quantization
from corepipe.models.checkpoints.safetensors import SafetensorsCheckpoint
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, Int4, Int8, Stored, taken

F32 = npt.NDArray[np.float32]


class Quantized(Protocol):
    """A quantised weight: its shape, and the tensor that holds its numbers."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def stored(self) -> str: ...


W = TypeVar("W", bound=Quantized)


class PartlyQuantized(Generic[W]):
    """A safetensors checkpoint, all of whose tensors have their usual names.

    weights: those that are quantised, by name. parts: the tensors that belong to them. Raises UserError where
    none is, although the configuration says so.
    """

    def __init__(
        self,
        plain: SafetensorsCheckpoint,
        quantization: Quantization,
        weights: Mapping[str, W],
        parts: Iterable[str],
    ) -> None:
        if not weights:
            raise quantization.fields.error(
                "quantization_config",
                f"says {quantization.method}, but no weight in {shown(plain.path, 200)} is quantised",
            )
        self.path = plain.path
        self.fingerprint = plain.fingerprint
        self._plain = plain
        self._weights = weights
        self._names = set(plain.names()).difference(parts) | weights.keys()

    def names(self) -> Iterable[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape if name in self._weights else self._plain.shape(name)

    def file(self, name: str) -> Path:
        return self._plain.file(self._weights[name].stored if name in self._weights else name)

    def read(self, name: str, rows: slice = ALL) -> F32:
        """Returns a quantised weight as the floats it represents, or a plain one as it is."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        return finite(self.dense(self._weights[name]), self.file(name), name)[rows]

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        """Returns four-bit integers in groups without change, others in int8."""
        if name not in self._weights:
            return self._plain.read(name, rows)
        direct = self.four_bits(self._weights[name])
        return Int8(*quantize_weight(self.read(name, rows))) if direct is None else taken(direct, rows)

    def by_rows(self, name: str) -> bool:
        return name not in self._weights

    def dense(self, weight: W) -> F32:
        """Returns the floats that a weight represents, damaged ones too."""
        raise NotImplementedError

    def four_bits(self, weight: W) -> Int4 | None:
        """Returns four-bit integers that kernels take without change; None for others."""
        raise NotImplementedError


def contradiction(plain: SafetensorsCheckpoint, name: str, why: str) -> UserError:
    """Returns the error for a tensor, which it names."""
    return UserError(f"{plain.file(name)}: tensor {shown(name)} {why}")
