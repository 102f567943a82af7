"""A core on which tests run single instructions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from corepipe.nki.core.buffers import Space
from corepipe.nki.core.recorder import Recorder, recording
from corepipe.nki.core.tensors import View, whole


class Bench:
    """A recorder with tiles to read and to write."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def put(self, array: Any, space: Space = Space.SBUF) -> View:
        """Returns a tile that holds an array."""
        value = np.asarray(array)
        view = self.new(value.shape, value.dtype, space)
        view.array()[...] = value
        view.written()[...] = True
        return view

    def new(self, shape: tuple[int, ...], dtype: Any = np.float32, space: Space = Space.SBUF) -> View:
        return whole(self.recorder.allocate(space, shape, dtype))

    @property
    def findings(self) -> set[str]:
        return {rule for rule, _ in self.recorder.findings}


@contextmanager
def bench(generation: str = "v3", *, legacy: bool = False, values: bool = True) -> Iterator[Bench]:
    recorder = Recorder(generation, legacy, values)
    with recording(recorder):
        yield Bench(recorder)
