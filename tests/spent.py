"""Processor time of a run of the tests: the ten tests that took most of it, and the sum over all processes.

A test's is that of its process, of children that were waited for, of commands (`tests/warm.py`) and of what
`gone` was told.  A server counts for the test after which it was ended.  Beside it is the time on the clock,
which hangs on what else the machine does.  TESTS_SPENT names a file that gets the sums as JSON, for budgets;
`python -m tests.spent FILE` makes of it the order in which files of tests are run (`tests/longest.txt`).
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import warm

ORDER = Path(__file__).with_name("longest.txt")
_GONE: list[float] = []


def gone(process: psutil.Process) -> None:
    """Counts a process that nobody of the tests will wait for, as it is about to be killed."""
    _GONE.append(_of(process))


def _of(process: psutil.Process) -> float:
    """Seconds of a living process and of the children that it has waited for."""
    with suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


def _own() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _unseen() -> float:
    """Seconds that no parent of a worker is told: of those killed, and of those that it leaves."""
    return sum(_GONE) + sum(map(_of, psutil.Process().children(recursive=True)))


class Spent:
    """Measures in a worker, and adds up where the run was started; without workers both is one process."""

    def __init__(self) -> None:
        self.tests: list[tuple[float, float, str]] = []
        self.unseen = 0.0
        self.began = (0.0, 0.0)

    def now(self) -> tuple[float, float]:
        return _own() + sum(_GONE) + sum(map(_of, warm.processes())), time.monotonic()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.began = self.now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown":
            report.spent = [now - then for now, then in zip(self.now(), self.began, strict=True)]
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if spent := getattr(report, "spent", None):
            self.tests.append((*spent, report.nodeid))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unseen"] = _unseen()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.unseen += getattr(node, "workeroutput", {}).get("unseen", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Workers have been waited for by now."""
        total = _own() + _unseen() + self.unseen
        if name := os.environ.get("TESTS_SPENT"):
            Path(name).write_text(json.dumps(self.sums(total), indent=1))
        terminalreporter.section("processor time, and time on the clock")
        for seconds, wall, test in sorted(self.tests, reverse=True)[:10]:
            terminalreporter.line(f"{seconds:8.1f} s {wall:7.1f} s  {test}")
        terminalreporter.line(f"{total:8.1f} s in all processes of {len(self.tests)} tests")

    def sums(self, total: float) -> dict[str, Any]:
        files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for seconds, wall, test in self.tests:
            of = files[test.partition("::")[0]]
            of[:] = of[0] + seconds, of[1] + wall
        return {"processor_seconds": total, "tests": len(self.tests), "files": files}


if __name__ == "__main__":
    walls = {file: wall for file, (_, wall) in json.loads(Path(sys.argv[1]).read_text())["files"].items()}
    ORDER.write_text("".join(f"{file}\n" for file in sorted(walls, key=walls.__getitem__, reverse=True)[:50]))
