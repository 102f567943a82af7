"""Collects which test runs which line of corepipe, file by file of the tests, in `build/planted/contexts`.

A line that a test runs in its own process is known by the test's id; one that is run while modules are
imported, or in another process that the test started, by the test's file alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from coverage import CoverageData

from tests.planted import BUILD, PACKAGE, ROOT

FOLDER = BUILD / "contexts"
LONGEST_SECONDS = 1800.0
"""A file of tests that failed under coverage; its results so far are lost."""

SETTINGS = """\
[run]
include = {root}/corepipe/*
data_file = {data}
parallel = true
patch = fork, _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured, already-imported
"""


@dataclass(frozen=True)
class Measured:
    """One file of tests.  lines: by source and test, with "" for the file as a whole.  digests: of the
    sources as they were.  own: the digest of the file itself.  seconds: of each test.
    """

    own: str
    seconds: dict[str, float]
    failed: list[str]
    lines: dict[str, dict[str, list[int]]]
    digests: dict[str, str]

    @cached_property
    def total(self) -> float:
        return sum(self.seconds.values())

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Lines of corepipe that each test runs, those of imports apart."""
        counts: dict[str, int] = defaultdict(int)
        for tests in self.lines.values():
            for test, lines in tests.items():
                counts[test] += len(lines)
        return counts


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def place(file: str) -> Path:
    return FOLDER / f"{file.removesuffix('.py').replace('/', '.')}.json"


def load() -> dict[str, Measured]:
    """All that has been measured, by file of tests."""
    found = {}
    for path in sorted(FOLDER.glob("*.json")):
        file = path.name.removesuffix(".json").replace(".", "/") + ".py"
        if (ROOT / file).exists():
            found[file] = _load(path, path.stat().st_mtime_ns)
    return found


@cache
def _load(path: Path, _changed: int) -> Measured:
    return Measured(**json.loads(path.read_text()))


def files_of_tests(beginnings: Iterable[str] = ("tests",)) -> list[str]:
    """All `test_*.py` whose path begins so; those of this package left out."""
    found = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    return [
        one for one in found if one.startswith(tuple(beginnings)) and not one.startswith("tests/planted/")
    ]


def is_measured(file: str) -> bool:
    path = place(file)
    return path.exists() and json.loads(path.read_text())["own"] == digest(ROOT / file)


def collect(files: Iterable[str]) -> None:
    """Measures those that were not, or that have changed since."""
    for file in files:
        if not is_measured(file):
            print(f"{file}: {_measure(file)}", flush=True)


def _measure(file: str) -> str:
    raw = BUILD / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    settings, report = raw / "coveragerc", raw / "report.json"
    settings.write_text(SETTINGS.format(root=ROOT, data=raw / "data"))
    named = {"COVERAGE_PROCESS_START": str(settings), "PLANTED_REPORT": str(report)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.planted.context_plugin", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "--tb=line", file],
            env={**os.environ, **named, "OPENBLAS_NUM_THREADS": "1"},
            cwd=ROOT,
            timeout=LONGEST_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "took too long"
    if not report.exists():
        return f"no report: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    told = json.loads(report.read_text())
    measured = _gathered(file, told, raw)
    FOLDER.mkdir(parents=True, exist_ok=True)
    place(file).write_text(json.dumps(vars(measured), separators=(",", ":")))
    return (
        f"{len(told['seconds'])} tests, {sum(told['seconds'].values()):.0f} s, {len(told['failed'])} failed"
    )


def _gathered(file: str, told: dict[str, Any], raw: Path) -> Measured:
    """Joins what the processes of one run have left."""
    lines: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for path in raw.glob("data.*"):
        for source, context, line in _read(path):
            lines[source][context].add(line)
    kept = {source: {one: sorted(some) for one, some in tests.items()} for source, tests in lines.items()}
    digests = {source: digest(ROOT / source) for source in lines}
    return Measured(digest(ROOT / file), told["seconds"], told["failed"], kept, digests)


def _read(path: Path) -> Iterator[tuple[str, str, int]]:
    """Source, context and line of each measurement in a file of coverage's."""
    data = CoverageData(str(path))
    try:
        data.read()
    except Exception as error:  # of a process that was killed while it wrote
        print(f"{path.name}: {error}", flush=True)
        return
    for name in data.measured_files():
        source = str(Path(name).relative_to(ROOT))
        if source.startswith(PACKAGE):
            for line, contexts in data.contexts_by_lineno(name).items():
                yield from ((source, context, line) for context in contexts)
