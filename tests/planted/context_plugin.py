"""A pytest plugin for the run that finds out which test runs which line: `-p tests.planted.context_plugin`.

Coverage is measured since the interpreter's start (`COVERAGE_PROCESS_START`); the plugin names the test that
runs, writes how long each takes to `PLANTED_REPORT`, and ends servers by SIGTERM, since a process that is
killed leaves no measurement.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import coverage
import pytest

from tests import servers

END_SECONDS = 20.0
"""Given to a server to end by itself."""

_seconds: dict[str, float] = defaultdict(float)
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _name(item.nodeid)
    try:
        return (yield)
    finally:
        _name("")


def _name(context: str) -> None:
    if measuring := coverage.Coverage.current():
        measuring.switch_context(context)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Writes the report; another process than the one that was asked, such as a nested pytest, does not."""
    if path := os.environ.pop("PLANTED_REPORT", ""):
        Path(path).write_text(json.dumps({"seconds": _seconds, "failed": sorted(_failed)}))


_served = servers.served


@contextmanager
def _ended_well(*arguments: object) -> Iterator[servers.Served]:
    """Replaces `servers.served`: the same, and the server ends by SIGTERM."""
    with _served(*arguments) as server:
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    server.process.wait(END_SECONDS)


servers.served = _ended_well
