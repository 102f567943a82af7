"""Reports on kernels as text: of one, with its engines and lines, or of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from corepipe.cli.output.tables import Figures, facts
from corepipe.nki.core.instructions import Engine
from corepipe.nki.run.advice import NAMES, size
from corepipe.nki.run.comparing import Difference
from corepipe.nki.run.report import (
    ArrayReport,
    CheckReport,
    EngineReport,
    KernelReport,
    MemoryReport,
)
from corepipe.nki.timing.times import Traffic

SHOWN_FINDINGS = 20
SHOWN_TENSORS = 3


def print_kernel(console: Console, one: KernelReport, lines: int) -> None:
    """Prints a kernel's report, with so many lines of its source."""
    console.print(f"{one.file}: {one.entry}({_inputs(one)}) on a core of {one.target} (emulated)")
    console.print(facts(_facts(one)))
    console.print(_engines(one.engines))
    for text in one.advice:
        console.print(f"- {text}")
    if lines and one.lines:
        console.print(_lines(one, lines))
    _print_findings(console, one)


def _inputs(one: KernelReport) -> str:
    return ", ".join(f"{given.name} {_array(given)}" for given in one.inputs)


def _array(one: ArrayReport) -> str:
    if one.shape is None:
        return f"= {one.value}"
    return f"{'x'.join(map(str, one.shape))} {one.dtype}"


def _facts(one: KernelReport) -> Iterator[tuple[str, str]]:
    yield "latency", f"{_us(one.latency_us)} us, {_us(one.low_us)} to {_us(one.high_us)}: {one.known}"
    yield "", f"{_us(one.frame_us)} us of it start and end any kernel; shares are of the rest"
    yield "bound", one.short_bound
    yield "memory", _memory(one.memory)
    yield "HBM", _traffic(one.traffic)
    if one.outputs:
        yield "outputs", ", ".join(map(_array, one.outputs))
    if one.check is not None:
        yield "check", checked(one.check)


def _us(value: float) -> str:
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def _memory(one: MemoryReport) -> str:
    sbuf, psum = _of(one.sbuf_peak, one.sbuf_limit), _of(one.psum_peak, one.psum_limit)
    text = f"most in use of a partition: SBUF {sbuf}, PSUM {psum}"
    largest = ", ".join(
        f"{tensor.name or 'a tensor'} of line {tensor.line} {tensor.bytes / 1024:,.1f}"
        for tensor in one.sbuf_largest[:SHOWN_TENSORS]
    )
    return f"{text}; the largest in SBUF: {largest} KiB" if largest else text


def _of(peak: int, limit: int) -> str:
    return f"{peak / 1024:,.1f} of {limit / 1024:,.0f} KiB"


def _traffic(one: Traffic) -> str:
    text = f"{size(one.read)} read, {size(one.written)} written"
    again = f", of which {size(one.spilled)} spilled and {size(one.reloaded)} reloaded"
    return text + (again if one.spilled or one.reloaded else ", nothing spilled")


def checked(one: CheckReport) -> str:
    """Returns the outcome of a comparison with the reference in words."""
    if one.difference.problem is not None:
        return f"not the outputs of {one.reference}: {one.difference.problem}"
    how = "the outputs" if one.passed else "not the outputs"
    return f"{how} of {one.reference}: {_apart(one.difference)}, --tolerance {one.tolerance:g}"


def _apart(one: Difference) -> str:
    if one.problem is not None:
        return one.problem
    relative = "unbounded" if one.max_rel_error is None else f"{one.max_rel_error:.2g}"
    return f"largest error {one.max_abs_error:.2g}, relative {relative}"


def _engines(engines: Sequence[EngineReport]) -> Figures:
    table = Figures("engine", ">busy", ">busy us", ">instructions")
    for one in engines:
        table.add_row(
            NAMES[Engine(one.engine)],
            f"{100 * one.busy_share:.1f} %",
            _us(one.busy_us),
            f"{one.instructions:,}",
        )
    return table


def _lines(one: KernelReport, most: int) -> Figures:
    """Returns a table of the slowest lines in the order of the source."""
    table = Figures(">busy us", ">share", ">line", "source")
    ranked = sorted(one.lines[:most], key=lambda line: (line.file != one.file, line.file, line.line))
    for line in ranked:
        where = str(line.line) if line.file == one.file else f"{Path(line.file).name}:{line.line}"
        table.add_row(_us(line.busy_us), f"{100 * line.share:.1f} %", where, line.source)
    return table


def _print_findings(console: Console, one: KernelReport) -> None:
    for found in one.findings[:SHOWN_FINDINGS]:
        where = one.file if found.file == one.file else Path(found.file).name
        console.print(f"{where}:{found.line}: {found.message} ({found.rule})", style="yellow")
    if len(one.findings) > SHOWN_FINDINGS:
        console.print(f"{len(one.findings) - SHOWN_FINDINGS} more findings; --json has all", style="yellow")


def print_compared(
    console: Console, found: Sequence[KernelReport], differences: Sequence[Difference]
) -> None:
    """Prints kernels side by side; `differences`: how far the outputs of all but the first are from its."""
    console.print(f"on a core of {found[0].target} (emulated)")
    table = Figures("", *(f">{_name(one, found)}" for one in found))
    for label, cell in ROWS.items():
        table.add_row(label, *map(cell, found))
    table.add_row("times as fast", *(f"{faster(found[0], one):.2f}" for one in found))
    table.add_row("largest error", "-", *map(_error, differences))
    console.print(table)
    for one, apart in zip(found[1:], differences, strict=True):
        if apart.problem is not None:
            console.print(f"{_name(one, found)}: outputs are not compared: {apart.problem}", style="yellow")
    for one in found:
        if one.check is not None:
            console.print(f"{_name(one, found)}: {checked(one.check)}")
        for text in one.advice:
            console.print(f"- {_name(one, found)}: {text}")
        _print_findings(console, one)


def faster(first: KernelReport, one: KernelReport) -> float:
    """Returns how many times as fast as the first a kernel is."""
    return first.latency_us / one.latency_us if one.latency_us else 1.0


def _name(one: KernelReport, found: Sequence[KernelReport]) -> str:
    """Returns the shortest name that no other kernel has."""

    def names(kernel: KernelReport) -> tuple[str, str, str]:
        file = Path(kernel.file).name
        return file, f"{file}:{kernel.entry}", f"{kernel.file}:{kernel.entry}"

    kinds = zip(*map(names, found), strict=True)
    unique = (kind for kind, every in enumerate(kinds) if every.count(names(one)[kind]) == 1)
    return names(one)[next(unique, 2)]


def _error(apart: Difference) -> str:
    if apart.max_abs_error is None:
        return "-"
    relative = "unbounded" if apart.max_rel_error is None else f"{apart.max_rel_error:.2g}"
    return f"{apart.max_abs_error:.2g} (relative {relative})"


def _busy(engine: Engine) -> Callable[[KernelReport], str]:
    """Returns the cell of an engine's busy share."""

    def cell(one: KernelReport) -> str:
        share = sum(part.busy_share for part in one.engines if part.engine == engine)
        return f"{100 * share:.1f} %"

    return cell


ROWS: Mapping[str, Callable[[KernelReport], str]] = MappingProxyType(
    {
        "latency, us": lambda one: _us(one.latency_us),
        "from, us": lambda one: _us(one.low_us),
        "to, us": lambda one: _us(one.high_us),
        "bound": lambda one: one.short_bound,
        **{f"{name} busy": _busy(engine) for engine, name in NAMES.items()},
        "instructions": lambda one: f"{sum(part.instructions for part in one.engines):,}",
        "HBM read": lambda one: size(one.traffic.read),
        "HBM written": lambda one: size(one.traffic.written),
        "spilled": lambda one: size(one.traffic.spilled),
        "SBUF, KiB": lambda one: _of(one.memory.sbuf_peak, one.memory.sbuf_limit),
        "PSUM, KiB": lambda one: _of(one.memory.psum_peak, one.memory.psum_limit),
        "findings": lambda one: str(len(one.findings)),
    }
)
"""The rows of kernels side by side, and their cells."""
