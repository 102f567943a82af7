"""The work of `corepipe nki`: kernels of files, each run in a process of its own, and what is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import typer

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import (
    check_writable,
    errors,
    print_json,
    progress_bar,
    results,
    sigterm_as_interrupt,
)
from corepipe.cli.run.nki_view import checked, faster, print_compared, print_kernel
from corepipe.errors import UserError
from corepipe.nki.run.bounded import KernelRun
from corepipe.nki.run.bounded import run as run_bounded
from corepipe.nki.run.comparing import Difference, difference
from corepipe.nki.run.job import Job
from corepipe.nki.run.report import KernelReport

NOT_MET = 3

QUIET_SECONDS = 3.0
"""The time after which a run shows that it goes on."""


def run(given: Given) -> None:
    """Runs the kernels and prints their reports.  Raises UserError for what cannot be run."""
    check_writable("--trace", given["trace"])
    jobs = _jobs(given)
    with sigterm_as_interrupt():
        runs = _runs(jobs)
    found = [one.report for one in runs]
    differences = [_compared(runs[0], other) for other in runs[1:]]
    if given["json"]:
        print_json(_document(found, differences))
    elif len(found) == 1:
        print_kernel(results(), found[0], given["lines"])
    else:
        print_compared(results(), found, differences)
    if given["trace"] is not None and not given["json"]:
        results().print(f"{given['trace']}: open it at https://ui.perfetto.dev")
    unmet = [line for one in found for line in _unmet(one, given["max_us"])]
    for line in unmet:
        errors().print(line)
    if unmet:
        raise typer.Exit(NOT_MET)


def _jobs(given: Given) -> list[Job]:
    """Returns the runs that are asked for.  Raises UserError for flags that do not fit together."""
    files: list[str] = given["files"]
    if len(files) > 1 and given["trace"] is not None:
        raise UserError("--trace: give one file; a timeline is that of one kernel", "trace")
    if given["no_values"] and given["check"] is not None:
        raise UserError("--check compares values; leave --no-values out", "check")
    if given["check"] is not None and not re.search(r"\.py:\w+$", given["check"]):
        raise UserError(f"--check {given['check']}: give a function as FILE.py:FUNCTION", "check")
    grid = _grid(given["grid"])
    return [_job(given, named, grid, outputs=len(files) > 1) for named in files]


def _job(given: Given, named: str, grid: tuple[int, ...], *, outputs: bool) -> Job:
    file, entry = named, given["entry"]
    if found := re.fullmatch(r"(.+\.py):(\w+)", named):
        file, entry = found[1], found[2]
    trace = given["trace"]
    return Job(
        file=file,
        entry=entry,
        inputs=given["inputs"],
        target=given["target"].value,
        grid=grid,
        values=not given["no_values"],
        check=given["check"],
        tolerance=given["tolerance"],
        outputs=outputs and not given["no_values"],
        trace=None if trace is None else str(trace),
        seconds=given["timeout_s"],
        memory=int(given["memory_gib"] * 2**30),
    )


def _grid(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
        raise UserError(
            f"--grid {text}: give the number of programs along each axis, such as 2 or 2x4", "grid"
        )
    return tuple(map(int, text.split("x")))


def _runs(jobs: Sequence[Job]) -> list[KernelRun]:
    """Runs the kernels one after the other; progress is shown where that takes a while."""
    found: list[KernelRun] = []
    with progress_bar(errors()) as report:

        def waiting(seconds: float) -> None:
            if seconds >= QUIET_SECONDS:
                report(f"running {jobs[len(found)].file}", len(found) / len(jobs), f"{seconds:.0f} s so far")

        found.extend(run_bounded(job, waiting) for job in jobs)
    return found


def _compared(first: KernelRun, other: KernelRun) -> Difference:
    """Returns how far another kernel's outputs are from the first's."""
    if first.report.inputs_digest != other.report.inputs_digest:
        return Difference(problem="the inputs differ; give both the same with --inputs")
    if not first.report.outputs or not other.report.outputs:
        return Difference(problem="there are no outputs")
    return difference(other.outputs, first.outputs)


def _document(found: Sequence[KernelReport], differences: Sequence[Difference]) -> dict[str, object]:
    compared = [
        {"file": one.file, "entry": one.entry, "times_as_fast": faster(found[0], one)}
        | msgspec.to_builtins(apart)
        for one, apart in zip(found[1:], differences, strict=True)
    ]
    kernels = [msgspec.to_builtins(one) for one in found]
    return {"emulated": True, "kernels": kernels, "compared_with_first": compared}


def _unmet(one: KernelReport, max_us: float | None) -> Iterator[str]:
    """Yields the conditions that a kernel does not meet."""
    if one.check is not None and not one.check.passed:
        yield f"{one.file}: {checked(one.check)}"
    if max_us is not None and one.latency_us > max_us:
        yield f"{one.file}: {one.entry} takes {one.latency_us:,.2f} us, more than --max-us {max_us:g}"
