"""Chooses the tests that could find a fault, the likeliest and quickest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.planted import ROOT
from tests.planted.areas import NATIVE, area_of
from tests.planted.contexts import Measured, digest, files_of_tests
from tests.planted.faults import Fault

QUICK_SECONDS = 15.0
"""The number of tests that are run together first."""
QUICK_TESTS = 150
UNKNOWN_SECONDS = 300.0
"""For a file that was not measured."""

RUNS_THE_LINE, RUNS_THE_SOURCE, ELSEWHERE, NAMED = range(4)
"""A test runs the line; or another line of its source, where the line is run as that is imported; or a file's
tests run it in another process; or a file has the source's name: a process that is killed leaves no trace."""


@dataclass(frozen=True, order=True)
class Test:
    """A test or a file of them.  cost: seconds by the share of what it runs that is in the fault's source."""

    tier: int
    cost: float
    name: str
    seconds: float


@dataclass
class Stage:
    """Tests for one run of pytest, and the seconds that they took when they were measured."""

    tests: list[str] = field(default_factory=list)
    seconds: float = 0.0


def stages(tests: Iterable[Test], most: float) -> list[Stage]:
    """Runs of growing length; what comes after `most` seconds is left out."""
    made, quick, spent = [Stage()], QUICK_SECONDS, 0.0
    for test in tests:
        stage = made[-1]
        if stage.tests and (stage.seconds + test.seconds > quick or len(stage.tests) >= QUICK_TESTS):
            made.append(stage := Stage())
            quick *= 3
        if spent and spent + test.seconds > most:
            continue
        stage.tests.append(test.name)
        stage.seconds += test.seconds
        spent += test.seconds
    return [stage for stage in made if stage.tests]


def of_short(fault: Fault, measured: dict[str, Measured]) -> list[Test]:
    """Tests of the short suite."""
    if fault.area == NATIVE:
        return list(_of_kernels(fault.path, measured))
    found: dict[str, Test] = {}
    for test in sorted([*_of_line(fault, measured), *_named(fault, measured)]):
        found.setdefault(test.name, test)
    return list(found.values())


def _named(fault: Fault, measured: dict[str, Measured]) -> Iterator[Test]:
    name = Path(fault.path).stem.encode()
    for file in files_of_tests():
        if name in (ROOT / file).read_bytes():
            seconds = measured[file].total if file in measured else UNKNOWN_SECONDS
            yield Test(NAMED, seconds, file, seconds)


def of_long(fault: Fault, measured: dict[str, Measured]) -> list[str]:
    """Files with tests of the long suite: the area's, without those that are known not to run the source."""
    slow = area_of(fault.area).slow
    if fault.area == NATIVE:
        return list(slow)
    return [file for file in slow if file not in measured or fault.path in measured[file].lines]


def _of_line(fault: Fault, measured: dict[str, Measured]) -> Iterator[Test]:
    """A source that has changed since has moved its lines: then each test that runs any of it counts."""
    now = digest(ROOT / fault.path)
    wanted = set(fault.lines)
    for file, one in measured.items():
        lines = one.lines.get(fault.path, {})
        moved = one.digests.get(fault.path) != now
        hit = {test for test, run in lines.items() if moved or wanted.intersection(run)}
        for test, run in lines.items():
            if not test or test in one.failed or not ({test, ""} & hit):
                continue
            seconds = one.seconds.get(test, 0.0)
            tier = RUNS_THE_LINE if test in hit else RUNS_THE_SOURCE
            yield Test(tier, (seconds + 0.05) * one.sizes[test] / len(run), test, seconds)
        if "" in hit:
            share = len(lines[""]) / one.sizes[""]
            yield Test(ELSEWHERE, (one.total + 1.0) / share, file, one.total)


KERNELS = (
    ("attention", "tests/kernels/test_attention.py"),
    ("kv_cache", "tests/kernels/test_attention.py"),
    ("latents", "tests/kernels/test_latents.py"),
    ("linear", "tests/kernels/test_linear.py"),
    ("matrix", "tests/kernels/test_linear.py"),
    ("int8", "tests/kernels/test_linear.py"),
    ("tiles", "tests/kernels/test_linear.py"),
    ("experts", "tests/kernels/test_experts.py"),
    ("sampler", "tests/kernels/test_sampler.py"),
    ("scan", "tests/kernels/test_scans.py"),
    ("rows", "tests/kernels/test_rows.py"),
    ("row_table", "tests/kernels/test_rows.py"),
    ("functions", "tests/kernels/test_rows.py"),
    ("division", "tests/kernels/test_division.py"),
    ("pool", "tests/kernels/test_pool.py"),
    ("job_queue", "tests/kernels/test_going_on.py"),
    ("chain", "tests/kernels/test_executor.py"),
    ("batch", "tests/kernels/test_executor.py"),
    ("executor", "tests/kernels/test_executor.py"),
    ("program", "tests/kernels/test_executor.py"),
    ("layout", "tests/kernels/test_executor.py"),
)
"""Parts of a source's path, and the tests that are about it."""

OF_SIMULATION = tuple(
    f"tests/{file}.py"
    for file in (
        *(
            f"simulation/test_{one}"
            for one in ("native_fleet", "frozen_records", "recurrent", "memory", "report", "simulate")
        ),
        *("simulation/test_pipelines", "simulation/test_encoders"),
        *("planning/planner/test_planner", "planning/planner/test_bounds", "workload/test_spans"),
    )
)
"""Tests that play simulations, whose native twins are sources with this word in their paths."""

WITH_KERNELS = (
    "executor", "rows", "going_on", "linear", "attention", "sampler", "scans", "experts", "latents", "pool",
    "tables", "packing", "division",
)  # fmt: skip
THEN = (
    "tests/neuron/test_executor.py",
    "tests/neuron/test_encoders.py",
    "tests/engine/test_queued_step.py",
    "tests/test_states.py",
    "tests/test_families.py",
    "tests/test_batching.py",
    "tests/test_placement.py",
)
"""Tests that compute with the native executor, the quickest first."""


def _of_kernels(path: str, measured: dict[str, Measured]) -> Iterator[Test]:
    """No contexts for C++: the tests about its file, then all others of kernels, then models."""
    about = [tests for part, tests in KERNELS if part in path]
    then = (*(f"tests/kernels/test_{one}.py" for one in WITH_KERNELS), *THEN)
    files = dict.fromkeys(OF_SIMULATION if "simulation" in path else [*about, *then])
    for place, file in enumerate(files):
        seconds = measured[file].total if file in measured else UNKNOWN_SECONDS
        yield Test(ELSEWHERE, float(place), file, seconds)
