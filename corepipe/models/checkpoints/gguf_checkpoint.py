"""The weights of a GGUF file as the Hugging Face checkpoint has them that it was converted from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import fingerprint, gathered, missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GgufFamily
from corepipe.neuron.int4 import ALL, Int8, Stored, W
from corepipe.neuron.numerics import quantize_weight

PLAIN = {"F32", "F16", "BF16"}
ONE_ROW = {"ffn_gate_inp_shexp"}
"""Matrices of one row, which the converter writes as vectors."""


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
        ours = self._name(name)
        shape = self._file.tensors[ours].shape
        if _stem(ours) in ONE_ROW:
            return (1, shape[-1])
        return shape[::-1] if self._is_transposed(ours) else shape

    def file(self, name: str) -> Path:  # noqa: ARG002 -- the protocol's: one file holds all
        return self.path

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        ours = self._name(name)
        if self._is_transposed(ours):
            return np.ascontiguousarray(self._file.read(ours).T[rows])
        if _stem(ours) in ONE_ROW:
            return self._file.read(ours).reshape(1, -1)[rows]
        values = self._in_order(ours, rows, lambda some: self._file.read(ours, some))
        if self._family.plus_one and ours.endswith("norm.weight"):
            values -= np.float32(1)
        return values

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        ours = self._name(name)
        if self._file.tensors[ours].type.name in PLAIN:
            return self.read(name, rows)
        if not self._file.is_four_bits(ours) or self._is_transposed(ours):
            values = self.read(name, rows)
            return Int8(*quantize_weight(values.reshape(-1, values.shape[-1])))
        return self._in_order(ours, rows, lambda some: self._file.read_int4(ours, some))

    def by_rows(self, name: str) -> bool:
        ours = self._name(name)
        return not self._is_transposed(ours) and _stem(ours) not in ONE_ROW

    def _in_order(self, ours: str, rows: slice, read: Callable[[slice], W]) -> W:
        """Some rows of what `read` reads, in the order of a Hugging Face checkpoint."""
        heads = self._heads.get(_stem(ours)) if self._family.interleaved else None
        if heads is None:
            return read(rows)
        return gathered(read, _separate_halves(self._file.tensors[ours].shape[0], heads)[rows])

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


def _separate_halves(count: int, heads: int) -> npt.NDArray[np.intp]:
    """Which of `count` rows (x0, y0, x1, y1, ...) of each head make (x0, x1, ..., y0, y1, ...)."""
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
