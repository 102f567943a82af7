"""Runs a kernel on the simulated core, and returns its outputs and its times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corepipe.errors import UserError
from corepipe.nki.core.buffers import Array
from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Finding
from corepipe.nki.dialects import install
from corepipe.nki.dialects.kernels import Kernel
from corepipe.nki.dialects.legacy.modules import TensorType
from corepipe.nki.run.calls import Call, run
from corepipe.nki.timing.timed import timed
from corepipe.nki.timing.times import EngineTime, Memory, Times, Traffic
from corepipe.nki.timing.trace import save_trace

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
        save_trace(self.times, path)


def simulate(
    kernel: Any,
    *arrays: Any,
    target: str = "trn1",
    values: bool = True,
    grid: Sequence[int] | int = (),
    **keywords: Any,
) -> Result:
    """Runs a kernel with arrays and other arguments.

    values: False computes the time alone, without data.  grid: programs along each axis; they run one after
    the other on one core.  Raises KernelError where the kernel breaks a rule or fails, and UserError for an
    unknown target.
    """
    lengths = (grid,) if isinstance(grid, int) else tuple(int(n) for n in grid)
    return _simulated(Call(kernel, arrays, keywords, lengths or getattr(kernel, "grid", ())), target, values)


def _simulated(call: Call, target: str, values: bool) -> Result:
    if target not in GENERATIONS:
        raise UserError(f"target {target!r} is unknown; there are {', '.join(GENERATIONS)}")
    with installed():  # kernels import in their bodies too
        found = run(call, GENERATIONS[target], values)
    times = timed(found.recorder)  # spills are findings of the times
    return Result(found.outputs, times, list({**found.findings, **found.recorder.findings}.values()))


@contextmanager
def installed() -> Iterator[None]:
    """Gives kernels the modules of `neuronxcc.nki` and `nki` within the block alone."""
    with install.installed(called):
        yield


def called(kernel: Kernel, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Runs a kernel that was called as a function, and returns what it returned as arrays.

    A benchmark computes the time alone: as on the device, its outputs mean nothing.
    """
    target = str(kernel.options.get("platform_target", "trn1" if kernel.legacy else "trn3"))
    mode = kernel.options.get("mode", kernel.mode)
    given = [_array(a) for a in arguments]
    named = {name: _array(a) for name, a in keywords.items()}
    call = Call(kernel, given, named, kernel.grid, updates=True)
    result = _simulated(call, target, values=mode != "benchmark")
    if mode == "benchmark":
        kernel.benchmark_result = Benchmark(Latency(result.latency_us))
    return result.outputs[0] if len(result.outputs) == 1 else tuple(result.outputs)


def _array(value: Any) -> Any:
    """Returns the array that stands for the type of a tensor."""
    return np.zeros(value.shape, value.dtype) if isinstance(value, TensorType) else value


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of a benchmark, which is the same each time."""

    microseconds: float

    def get_latency_percentile(self, percentile: int) -> float:
        """Returns microseconds."""
        return self.microseconds


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The result of `nki.benchmark`."""

    nc_latency: Latency
