"""Runs suites of langchain-tests as rows: the result of each test is printed as a row."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.rows import EXPLAINED, FAILED, PASSED, RowResult

ONE_LOOP = [f"asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
"""Connections are kept over tests, and belong to one event loop."""


class RowReporter:
    """A pytest plugin that prints the result of each test as a row.

    more: explanations of the suite's reasons to skip a test, by the beginning of the reason.
    """

    def __init__(self, more: Mapping[str, str]) -> None:
        self._more = more

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        title = report.nodeid.split("::")[-1]
        if report.skipped:
            RowResult(title, EXPLAINED, self._why(report)).tell()
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            told = " ".join(str(crash.message if crash else report.longrepr).split())
            RowResult(title, FAILED, told[:600]).tell()
        elif report.when == "call":
            RowResult(title, PASSED).tell()

    def _why(self, report: pytest.TestReport) -> str:
        why = getattr(report, "wasxfail", "") or str(report.longrepr[2]).removeprefix("Skipped: ")
        more = next((told for begin, told in self._more.items() if why.startswith(begin)), "")
        return f"{why.rstrip('.')}: {more}" if more else why


def run(file: str, more: Mapping[str, str]) -> int:
    """Runs the tests of a file, or those that CLIENTS_ROWS selects; returns the exit status."""
    options = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "--asyncio-mode=auto"]
    alone = ["--noconftest", "-c", os.devnull, "--rootdir", str(Path(__file__).parent)]
    chosen = ["-k", os.environ.get("CLIENTS_ROWS", "")]
    loop = [argument for setting in ONE_LOOP for argument in ("-o", setting)]
    ended = pytest.main([file, *options, *alone, *loop, *chosen], plugins=[RowReporter(more)])
    none = pytest.ExitCode.NO_TESTS_COLLECTED if chosen[1] else pytest.ExitCode.OK
    return 0 if ended in {pytest.ExitCode.TESTS_FAILED, none} else int(ended)  # failed rows are told
