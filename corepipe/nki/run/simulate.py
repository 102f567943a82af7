"""Runs a kernel on the simulated core, and returns its outputs and its times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Finding
from corepipe.nki.timing.times import EngineTime, Memory, Times, Traffic

GENERATIONS = {"trn1": "v2", "inf2": "v2", "trn2": "v3", "trn3": "v4"}
"""NeuronCores of the targets."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    outputs: arrays that the kernel returned, in order; empty if no values were computed.
    """

    outputs: Sequence[Array]
    times: Times
    findings: Sequence[Finding]

    @property
    def latency_us(self) -> float:
        return self.times.seconds * 1e6

    @property
    def low(self) -> float:
        return self.times.low * 1e6

    @property
    def high(self) -> float:
        return self.times.high * 1e6

    @property
    def engines(self) -> Mapping[Engine, EngineTime]:
        return self.times.engines

    @property
    def traffic(self) -> Traffic:
        return self.times.traffic

    @property
    def memory(self) -> Memory:
        return self.times.memory

    @property
    def lines(self) -> Mapping[tuple[str, int], float]:
        """Seconds by file and line of the source."""
        return {(site.file, site.line): seconds for site, seconds in self.times.lines.items()}

    def save_trace(self, path: str | Path) -> None:
        """Writes the time line for ui.perfetto.dev."""
        raise NotImplementedError


def simulate(
    kernel: Any,
    *arrays: Any,
    target: str = "trn1",
    values: bool = True,
    grid: Sequence[int] | int = (),
    **keywords: Any,
) -> Result:
    """Runs a kernel.  Raises KernelError where it breaks a rule, and UserError for an unknown target."""
    raise NotImplementedError
