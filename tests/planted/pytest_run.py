"""Runs tests in a worker's tree up to the first that fails, and ends what they leave.

A fault may hang or fill the memory: both have limits, and both mean that it was found.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.planted.trees import Tree

MOST_MEMORY = 4 << 30
"""Bytes of all processes of a run together; the suite's own need 2 GB."""

SLACK_SECONDS = 30.0
TIMES = 2.0
"""Tests may use this many times what they took under coverage, and the slack, of processor time."""
STILL_SECONDS = 100.0
"""The seconds on the clock, with less than a second of processor time, after which a test hangs."""

END_SECONDS = 10.0

BECOME_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): what outlives its parent becomes a child of this process."""

FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
PASSED = {0, 5}  # 5: no test was chosen
HUNG, FULL, CRASHED = "(time)", "(memory)", "(crash)"


@dataclass(frozen=True)
class Ran:
    """failed: tests in the order in which they failed; limit: a word in brackets where one ended the run."""

    failed: list[str]
    limit: str = ""

    @property
    def found(self) -> str:
        """The sign of a fault, if there is any."""
        return self.limit or (self.failed[0] if self.failed else "")


def run(tree: Tree, tests: Sequence[str], most: float, more: Iterable[str] = ()) -> Ran:
    """Runs `tests`, for `most` seconds of processor time."""
    shutil.rmtree(
        tree.root / ".hypothesis", ignore_errors=True
    )  # it would begin with another fault's examples
    log = tree.folder / "pytest.log"
    command = [
        str(tree.python),
        "-m",
        "pytest",
        "-x",
        "--tb=no",
        "-rfE",
        "-p",
        "no:cacheprovider",
        *more,
        *tests,
    ]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=tree.root,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            over = _watch(process, most)
        finally:
            end_all()
    return Ran([], over) if over else _ended(process.returncode, log)


def generous(seconds: float) -> float:
    """The limit for tests that took `seconds`."""
    return SLACK_SECONDS + TIMES * seconds


def _ended(code: int, log: Path) -> Ran:
    if code in PASSED:
        return Ran([])
    failed = FAILED.findall(log.read_text(errors="replace"))
    return Ran(failed, "" if failed else CRASHED)


def _watch(process: subprocess.Popen[bytes], most: float) -> str:
    """Waits for its end; says what limit it went over, if any."""
    used, moved = 0.0, time.monotonic()
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        now, memory = _use()
        if now > used + 1.0:
            used, moved = now, time.monotonic()
        if now > most or time.monotonic() - moved > STILL_SECONDS:
            return HUNG
        if memory > MOST_MEMORY:
            return FULL
    return ""


def _use() -> tuple[float, int]:
    """Seconds of processor time, and bytes, of all children; those that ended count as their parents'."""
    used, memory = 0.0, 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
            memory += child.memory_info().rss
    return used, memory


def become_subreaper() -> None:
    ctypes.CDLL(None).prctl(BECOME_SUBREAPER, 1, 0, 0, 0)


def end_all() -> None:
    """Ends all children, orphans among them, and waits until they are gone: what they used would count as the
    next run's."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, END_SECONDS)
