"""A checkpoint joined with those of the modules beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corepipe.models.checkpoints.checkpoint import Checkpoint
from corepipe.neuron.numerics.int4 import ALL, Stored


class JoinedCheckpoint:
    """A model's own tensors, and those of each part under the part's name and a dot."""

    def __init__(self, own: Checkpoint, parts: Mapping[str, Checkpoint]) -> None:
        self._own = own
        self._parts = parts
        self.path = own.path
        self.stored_as = own.stored_as
        digests = (one.fingerprint for one in (own, *parts.values()))
        self.fingerprint = hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def names(self) -> Iterator[str]:
        yield from self._own.names()
        for part, checkpoint in self._parts.items():
            yield from (f"{part}.{name}" for name in checkpoint.names())

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor; raises UserError where it is missing."""
        checkpoint, inner = self._of(name)
        return checkpoint.shape(inner)

    def file(self, name: str) -> Path:
        checkpoint, inner = self._of(name)
        return checkpoint.file(inner)

    def read(self, name: str, rows: slice = ALL) -> npt.NDArray[np.float32]:
        """Returns some rows as a fresh fp32 copy; raises UserError for missing tensors and broken files."""
        checkpoint, inner = self._of(name)
        return checkpoint.read(inner, rows)

    def stored(self, name: str, rows: slice = ALL) -> Stored:
        checkpoint, inner = self._of(name)
        return checkpoint.stored(inner, rows)

    def by_rows(self, name: str) -> bool:
        checkpoint, inner = self._of(name)
        return checkpoint.by_rows(inner)

    def _of(self, name: str) -> tuple[Checkpoint, str]:
        part, _, inner = name.partition(".")
        return (self._parts[part], inner) if part in self._parts else (self._own, name)
