"""The weights of a GGUF file as the Hugging Face checkpoint has them that it was converted from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import fingerprint, missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GgufFamily
from corepipe.neuron.int4 import Int8, Stored
from corepipe.neuron.numerics import quantize_weight

_Any = TypeVar("_Any", bound=np.generic)

PLAIN = {"F32", "F16", "BF16"}


class GgufCheckpoint:
    """The weights of a GGUF file.  `heads` says how many heads the rows of "attn_q" and "attn_k" hold.

    Raises UserError for tensors with a scale of their own, which the values of no block type say.
    """

    def __init__(self, file: GgufFile, family: GgufFamily, heads: Mapping[str, int]) -> None:
        self.path = file.path
        self.fingerprint = fingerprint([(file.path, file.header)])
        self._file = file
        self._family = family
        self._heads = heads
        self._names = {hf: name for name in file.tensors if (hf := hf_name(family, name)) is not None}
        for name in file.tensors:
            if name.endswith(".scale"):
                raise UserError(
                    f"{file.path}: tensor {shown(name)}: scales of whole tensors are not supported"
                )

    def names(self) -> Iterable[str]:
        return self._names.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._file.tensors[self._name(name)].shape
        return shape[::-1] if self._is_transposed(self._name(name)) else shape

    def file(self, name: str) -> Path:  # noqa: ARG002 -- the protocol's: one file holds all
        return self.path

    def read(self, name: str) -> npt.NDArray[np.float32]:
        ours = self._name(name)
        values = self._file.read(ours)
        stem = _stem(ours)
        if self._family.interleaved and stem in self._heads:
            values = _separate_halves(values, self._heads[stem])
        if self._family.plus_one and ours.endswith("norm.weight"):
            values -= np.float32(1)
        return np.ascontiguousarray(values.T) if self._is_transposed(ours) else values

    def stored(self, name: str) -> Stored:
        ours = self._name(name)
        if self._file.tensors[ours].type.name in PLAIN:
            return self.read(name)
        if not self._file.is_four_bits(ours) or self._is_transposed(ours):
            return Int8(*quantize_weight(self.read(name)))
        weight, stem = self._file.read_int4(ours), _stem(ours)
        if self._family.interleaved and stem in self._heads:
            return weight.rows(_separate_halves(np.arange(len(weight.values)), self._heads[stem]))
        return weight

    @property
    def stored_as(self) -> str | None:
        """The block types of the weights, for people; None where there are none."""
        types = {self._file.tensors[name].type.name for name in self._names.values()}
        return ", ".join(sorted(types - PLAIN)) or None

    @property
    def four_bits_as(self) -> str | None:
        names = self._names.values()
        kept = (name for name in names if self._file.is_four_bits(name) and not self._is_transposed(name))
        return ", ".join(sorted({self._file.tensors[name].type.name for name in kept})) or None

    def _is_transposed(self, name: str) -> bool:
        return _stem(name) in self._family.transposed and name.endswith(".weight")

    def _name(self, name: str) -> str:
        if name not in self._names:
            raise missing(self.path, name)
        return self._names[name]


def hf_name(family: GgufFamily, name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, None for those that are no weights of the forward pass."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None:
        return None
    layer, stem, kind = match.groups()
    if layer is None:
        return f"{family.top[stem]}.{kind}" if stem in family.top else None
    return f"{family.layers}{layer}.{family.layer[stem]}.{kind}" if stem in family.layer else None


def _stem(name: str) -> str:
    """What a tensor is: its name without layer and kind."""
    return name.split(".")[-2]


def _separate_halves(values: npt.NDArray[_Any], heads: int) -> npt.NDArray[_Any]:
    """Rows (x0, y0, x1, y1, ...) of each head back to (x0, x1, ..., y0, y1, ...)."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
