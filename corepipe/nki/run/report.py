"""The report on a kernel's run: what `corepipe nki --json` prints, and what its tables are made of."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from corepipe.nki.core.instructions import Engine
from corepipe.nki.core.recorder import Finding
from corepipe.nki.run.comparing import Difference
from corepipe.nki.run.simulate import Result
from corepipe.nki.timing.times import EngineTime, Memory, Times, Traffic


class ArrayReport(msgspec.Struct, frozen=True):
    """An input or an output; `value` is that of an input that is no array."""

    name: str
    shape: list[int] | None = None
    dtype: str | None = None
    value: str | None = None


class EngineReport(msgspec.Struct, frozen=True):
    """The work of an engine; busy_share is that of the predicted time without the frame."""

    engine: str
    busy_us: float
    busy_share: float
    instructions: int


class LineReport(msgspec.Struct, frozen=True):
    """A line of the source: busy times of all engines together, and their share of those of all lines."""

    file: str
    line: int
    source: str
    busy_us: float
    share: float


class TensorReport(msgspec.Struct, frozen=True):
    """A tensor on chip, the line that allocates it, and its bytes of a partition."""

    name: str
    line: int
    bytes: int


class MemoryReport(msgspec.Struct, frozen=True):
    """Bytes of a partition: the most that are in use at a time, and what there is; and the largest tensors
    in SBUF at that time."""

    sbuf_peak: int
    sbuf_limit: int
    psum_peak: int
    psum_limit: int
    sbuf_largest: list[TensorReport]


class FindingReport(msgspec.Struct, frozen=True):
    """A fault that did not stop the kernel."""

    rule: str
    message: str
    file: str
    line: int


class CheckReport(msgspec.Struct, frozen=True):
    """The comparison with the function that --check names."""

    reference: str
    difference: Difference
    tolerance: float
    passed: bool


class KernelReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a kernel.

    low_us, high_us: an interval of the latency; `known` says in words what it rests on.  frame_us: the part
    of the latency that is the start and the end of any kernel.  bound: the engine or the wait that sets the
    time; advice: what would help.  lines: the slowest first.
    """

    file: str
    entry: str
    target: str
    inputs: list[ArrayReport]
    inputs_digest: str
    outputs: list[ArrayReport]
    latency_us: float
    low_us: float
    high_us: float
    known: str
    frame_us: float
    bound: str
    advice: list[str]
    engines: list[EngineReport]
    lines: list[LineReport]
    memory: MemoryReport
    traffic: Traffic
    findings: list[FindingReport]
    check: CheckReport | None = None

    @property
    def short_bound(self) -> str:
        """The bound without its reasons, which the advice has."""
        return self.bound.partition(":")[0]


def dtype_named(name: str) -> np.dtype[Any]:
    """Returns a type of numpy or of ml_dtypes.  Raises TypeError where there is none of that name."""
    import ml_dtypes  # noqa: PLC0415 -- its types have no name in numpy before it is imported

    return np.dtype(getattr(ml_dtypes, name, name))


def arrays(values: Mapping[str, Any]) -> list[ArrayReport]:
    """Returns reports on arrays and other values with their names."""
    return [_array(name, value) for name, value in values.items()]


def _array(name: str, value: Any) -> ArrayReport:
    if isinstance(value, np.ndarray):
        return ArrayReport(name, list(value.shape), value.dtype.name)
    return ArrayReport(name, value=repr(value)[:80])


def measured(result: Result, frame: float) -> dict[str, Any]:
    """Returns the fields of a report that are the times, the memory and the findings of a run.

    frame: seconds of the start and the end of any kernel.
    """
    times = result.times
    return {
        "latency_us": result.latency_us,
        "low_us": result.low,
        "high_us": result.high,
        "known": times.known,
        "bound": times.bound,
        "frame_us": 1e6 * frame,
        "engines": _engines(times, times.seconds - frame),
        "lines": _lines(result.lines),
        "memory": _memory(times.memory),
        "traffic": times.traffic,
        "findings": _findings(result.findings),
    }


def _engines(times: Times, total: float) -> list[EngineReport]:
    every = {engine: times.engines.get(engine, EngineTime(0.0, 0)) for engine in Engine}
    return [
        EngineReport(engine.value, 1e6 * one.busy, one.busy / total if one.busy else 0.0, one.instructions)
        for engine, one in every.items()
    ]


def _memory(held: Memory) -> MemoryReport:
    largest = held.sbuf_peak.largest if held.sbuf_peak else ()
    tensors = [TensorReport(buffer.name, buffer.site.line, size) for buffer, size in largest]
    return MemoryReport(held.sbuf, held.sbuf_limit, held.psum, held.psum_limit, tensors)


def _lines(busy: Mapping[tuple[str, int], float]) -> list[LineReport]:
    """Returns the lines with their source text, the slowest first."""
    total = sum(busy.values()) or 1.0
    return [
        LineReport(file, line, linecache.getline(file, line).strip(), 1e6 * seconds, seconds / total)
        for (file, line), seconds in sorted(busy.items(), key=lambda item: (-item[1], item[0]))
    ]


def _findings(found: Iterable[Finding]) -> list[FindingReport]:
    """Returns findings by the lines that they are about."""
    ranked = sorted(found, key=lambda one: (one.site.file, one.site.line, one.rule))
    return [FindingReport(one.rule, one.message, one.site.file, one.site.line) for one in ranked]
