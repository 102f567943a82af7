"""The weights of a GGUF file under the names and in the layout of the Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.errors import UserError, shown
from corepipe.models.checkpoints.checkpoint import StoredAs, fingerprint, gathered, missing
from corepipe.models.checkpoints.gguf import GgufFile
from corepipe.models.checkpoints.gguf_families import GgufFamily
from corepipe.models.checkpoints.gguf_restored import F32, RESTORED, TOGETHER, TRANSPOSED, RestoredTensor
from corepipe.neuron.numerics.arithmetic import quantize_weight
from corepipe.neuron.numerics.int4 import ALL, Int8, Stored, W

PLAIN = {"F32", "F16", "BF16"}
AS_FLOATS = PLAIN | {"MXFP4"}
"""Types that are quantised like floats: the steps of MXFP4 are unequal, so it is not a grid of integers."""
ASIDE = {"rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd"}
"""Tensors of frequencies, which are not weights."""


@dataclass(frozen=True, slots=True)
class _GgufSource:
    """The file's tensors that hold one tensor of the original, and how it is restored from them; None:
    without change, except for the rows and gains that the family describes."""

    tensors: tuple[str, ...]
    restored: RestoredTensor | None = None


class GgufCheckpoint:
    """The weights of a GGUF file. `heads` is the number of heads in the rows of "attn_q" and "attn_k".

    Raises UserError for tensors with a scale of their own, which is in no block type's values, and for
    tensors that have no place in the family.
    """

    def __init__(self, file: GgufFile, family: GgufFamily, heads: Mapping[str, int]) -> None:
        self.path = file.path
        self.fingerprint = fingerprint(file.parts)
        self._file = file
        self._family = family
        self._heads = heads
        self._sources: dict[str, _GgufSource] = {}
        for name in file.tensors:
            if name.endswith(".scale"):
                raise UserError(
                    f"{file.path}: tensor {shown(name)}: scales of whole tensors are not supported"
                )
            if (hf := hf_name(family, name)) is not None:
                self._sources[hf] = _GgufSource((name,), _restored(family, name))
            elif not ASIDE.intersection(name.split(".")):
                raise UserError(
                    f"{file.path}: tensor {shown(name)} has no place in a model of architecture "
                    f"{file.metadata.get('general.architecture')}"
                )
        self._join()

    def _join(self) -> None:
        """Puts tensors that hold one tensor of the original in two under one name."""
        for (first, second), (whole, restored) in TOGETHER.items():
            for name in [name for name in self._sources if name.endswith(f".{first}")]:
                stem = name.removesuffix(first)
                both = (self._sources.pop(name), self._sources.pop(stem + second, None))
                if both[1] is None:
                    raise missing(self.path, stem + second)
                if stem + whole in self._sources:
                    raise UserError(f"{self.path}: tensor {shown(stem + whole)} is both whole and in parts")
                self._sources[stem + whole] = _GgufSource((*both[0].tensors, *both[1].tensors), restored)

    def names(self) -> Iterable[str]:
        return self._sources.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        source = self._source(name)
        shapes = [self._file.tensors[tensor].shape for tensor in source.tensors]
        if source.restored is None:
            return shapes[0]
        try:
            return source.restored.shape(*shapes)
        except (ValueError, IndexError) as error:
            told = " and ".join(f"{shown(t)} {list(s)}" for t, s in zip(source.tensors, shapes, strict=True))
            raise UserError(f"{self.path}: {told}: {shown(name)} cannot be made of these shapes") from error

    def file(self, name: str) -> Path:
        return self._file.tensors[self._source(name).tensors[0]].file

    def read(self, name: str, rows: slice = ALL) -> F32:
        source = self._source(name)
        if source.restored is not None:
            self.shape(name)  # raises an error with the tensors' names where their shapes do not fit
            return self._made(source, source.restored)[rows]
        (ours,) = source.tensors
        values = self._in_order(ours, rows, lambda some: self._file.read(ours, some))
        if self._family.plus_one and ours.endswith("norm.weight"):
            values -= np.float32(1)
        return values

    def _made(self, source: _GgufSource, restored: RestoredTensor) -> F32:
        try:
            return restored.made(*map(self._file.read, source.tensors))
        except ValueError as error:
            told = ", ".join(map(shown, source.tensors))
            raise UserError(f"{self.path}: tensor {told} {error}: the weights are damaged") from error

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        source = self._source(name)
        if self._types(source) <= AS_FLOATS:
            return self.read(name, rows)
        if not self._keeps_four_bits(source):
            values = self.read(name, rows)
            return Int8(*quantize_weight(values.reshape(-1, values.shape[-1])))
        (ours,) = source.tensors
        return self._in_order(ours, rows, lambda some: self._file.read_int4(ours, some))

    def by_rows(self, name: str) -> bool:
        return self._source(name).restored is None

    def _in_order(self, ours: str, rows: slice, read: Callable[[slice], W]) -> W:
        """Returns some rows of what `read` reads, in the order of a Hugging Face checkpoint."""
        heads = self._heads.get(_stem(ours)) if self._family.interleaved else None
        if heads is None:
            return read(rows)
        return gathered(read, _separate_halves(self._file.tensors[ours].shape[0], heads)[rows])

    @property
    def stored_as(self) -> StoredAs:
        """The block types of the weights, without plain ones."""
        sources = self._sources.values()
        types = set[str]().union(*map(self._types, sources)) - PLAIN
        kept = set[str]().union(*(self._types(one) for one in sources if self._keeps_four_bits(one)))
        return StoredAs(*(", ".join(sorted(found)) or None for found in (types, kept, types & AS_FLOATS)))

    def _types(self, source: _GgufSource) -> set[str]:
        return {self._file.tensors[name].type.name for name in source.tensors}

    def _keeps_four_bits(self, source: _GgufSource) -> bool:
        return source.restored is None and self._file.is_four_bits(source.tensors[0])

    def _source(self, name: str) -> _GgufSource:
        if name not in self._sources:
            raise missing(self.path, name)
        return self._sources[name]


def hf_name(family: GgufFamily, name: str) -> str | None:
    """Returns the Hugging Face name of a GGUF tensor, None for one that has no place in the family."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?((\w+)(?:\.(weight|bias))?)", name)
    if match is None:
        return None
    layer, whole, stem, kind = match.groups()
    if layer is None:
        return f"{family.top[stem]}.{kind}" if stem in family.top and kind else None
    if whole in family.whole:
        return f"{family.layers}{layer}.{family.whole[whole]}"
    return f"{family.layers}{layer}.{family.layer[stem]}.{kind}" if stem in family.layer and kind else None


def _restored(family: GgufFamily, name: str) -> RestoredTensor | None:
    """Returns how the original is restored from the file's tensor of this name; None: without change."""
    end = name.split(".", 2)[-1]
    if end.removesuffix(".weight") in family.transposed and end.endswith(".weight"):
        return TRANSPOSED
    return RESTORED.get(end)


def _stem(name: str) -> str:
    """Returns a tensor's name without layer and kind."""
    return name.split(".")[-2]


def _separate_halves(count: int, heads: int) -> npt.NDArray[np.intp]:
    """Returns which of `count` rows (x0, y0, x1, y1, ...) of each head make (x0, x1, ..., y0, y1, ...)."""
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
