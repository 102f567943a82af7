"""The weights of a GGUF file as the Hugging Face checkpoint has them that it was converted from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import fingerprint, missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GgufFamily

NOTHING = "F32"
"""The type of what llama.cpp does not quantise: gains, and biases."""


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

    @property
    def stored_as(self) -> str:
        """The block types of the weights, for people."""
        types = {self._file.tensors[name].type.name for name in self._names.values()}
        return ", ".join(sorted(types - {NOTHING})) or NOTHING

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


def _separate_halves(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows (x0, y0, x1, y1, ...) of each head back to (x0, x1, ..., y0, y1, ...)."""
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
