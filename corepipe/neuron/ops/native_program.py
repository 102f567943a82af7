"""What Ops append themselves to: a core's native program, as the binding has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy.typing as npt

from corepipe.neuron.numerics.arithmetic import F32

State = tuple[Any, int]
"""Where native code has an Op's part of the states of sequences: a cache, and where in a block it begins."""


class NativeProgram(Protocol):
    """What the native program of a core runs, in the order of the calls; values are buffers' numbers."""

    def embed(self, out: int, table: npt.NDArray[Any]) -> None: ...
    def patches(self, out: int) -> None: ...
    def first_rows(self, out: int, rows: F32) -> None: ...
    def add_embedding(self, x: int, out: int, table: npt.NDArray[Any], offset: int, by: str) -> None: ...
    def rms_norm(self, x: int, out: int, gain: F32, eps: float, groups: int) -> None: ...
    def layer_norm(
        self, x: int, out: int, gain: F32 | None, bias: F32 | None, eps: float, groups: int = 1
    ) -> None: ...
    def normalize(self, x: int, out: int, eps: float) -> None: ...
    def pool(self, pooling: str, x: int, out: int) -> None: ...
    def rope(self, x: int, out: int, head_dim: int, cos: F32, sin: F32) -> None: ...
    def activation(self, function: str, x: int, out: int) -> None: ...
    def glu(self, gate: int, up: int, out: int, function: str) -> None: ...
    def clamp(self, x: int, limit: float, out: int) -> None: ...
    def scale(self, x: int, factor: float, out: int, by: int | None) -> None: ...
    def convolve(
        self, x: int, out: int, weights: F32, bias: F32 | None, function: str, state: State
    ) -> None: ...
    def scan(
        self,
        values: tuple[int, int, int, int],
        out: int,
        of_heads: tuple[F32, F32, F32],
        limits: tuple[float, float],
        states: int,
        state: State,
    ) -> None: ...
    def add(self, a: int, b: int, out: int) -> None: ...
    def select_rows(self, x: int, out: int) -> None: ...
    def experts(  # noqa: PLR0913 -- three values, three stacks, and what is done with them
        self,
        x: int,
        scores: int,
        out: int,
        gate: Sequence[Any],
        up: Sequence[Any],
        down: Sequence[Any],
        *,
        top_k: int,
        scoring: str,
        function: str,
        biases: Sequence[F32],
        nearness: float,
        correction: F32 | None,
        groups: tuple[int, int],
        factor: float,
        first: int | None,
    ) -> None: ...
    def gather_slots(  # noqa: PLR0913 -- whose results go where, and by what they are weighed
        self,
        x: int,
        scores: int,
        out: int,
        group: Sequence[int],
        bounds: Sequence[int],
        *,
        top_k: int,
        scoring: str,
        nearness: float,
        correction: F32 | None,
        groups: tuple[int, int],
        factor: float,
    ) -> None: ...
    def latent_attention(
        self,
        values: tuple[int, int, int],
        out: int,
        cache: Any,  # noqa: ANN401 -- the native module's
        layer: int,
        key_up: Sequence[Any],
        value_up: Sequence[Any],
        scale: float,
        table: int,
    ) -> None: ...
    def all_reduce(self, x: int, out: int, group: Sequence[int]) -> None: ...
    def all_gather(self, x: int, out: int, group: Sequence[int], widths: Sequence[int]) -> None: ...
    def send(self, x: int, peer: int, rows: str) -> None: ...
    def receive(self, out: int, peer: int, rows: str) -> None: ...
