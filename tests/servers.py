"""A real `python -m corepipe serve` process, as a user starts it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from corepipe.errors import UserError
from corepipe.models import hub
from tests import spent, warm

TINY = Path(__file__).parent / "data" / "tiny" / "llama3"
PATIENCE_SECONDS = 180.0
"""Seconds that a test waits for an event.  Only a failing test waits so long: it says nothing about speed."""
LOAD_SECONDS = END_SECONDS = PATIENCE_SECONDS

ADDRESS = re.compile(r"(https?://[\w.:\[\]]+)/v1")


class Served:
    """A server that is ready; `stderr` grows while it runs."""

    def __init__(self, process: subprocess.Popen[str] | warm.Forked) -> None:
        self.process = process
        self.stderr: list[str] = []
        self.url = ""
        self._announced = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        self._announced.wait(LOAD_SECONDS)
        assert self.url, "".join(self.stderr)

    def get(self, path: str, **more: object) -> httpx.Response:
        return httpx.get(self.url + path, **more)

    def post(self, path: str, **more: object) -> httpx.Response:
        return httpx.post(self.url + path, **more)

    def metric(self, name: str, label: str = "") -> float:
        """Reads a metric, see `metric_of`.  An engine's metrics exist after its first report."""
        read: list[str] = []

        def is_there() -> bool:
            read[:] = [self.get("/metrics").text]
            return bool(series_of(read[0], name, label))

        until(is_there)
        return metric_of(read[0], name, label)

    @functools.cached_property
    def model(self) -> str:
        """The name of the first model."""
        return self.get("/v1/models").json()["data"][0]["id"]

    def engine(self) -> psutil.Process:
        """The oldest of its kind; a younger one is the spare that waits to take its place."""
        return engines(self.process.pid)[0]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(END_SECONDS)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):  # it was closed, as the test is over
            for line in self.process.stderr:
                self.stderr.append(line)
                if found := ADDRESS.search(line):
                    self.url = found[1]
                    self._announced.set()
        self._announced.set()  # it ended without a word of being ready


def metric_of(text: str, name: str, label: str = "") -> float:
    """Sum of a metric over its series, or over those with a label such as `reason="abort"`."""
    values = series_of(text, name, label)
    assert values, f"{name} is not in /metrics"
    return sum(values)


def series_of(text: str, name: str, label: str = "") -> list[float]:
    """Values of a metric's series, or of those with a label."""
    series = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", text, re.MULTILINE)
    return [float(value) for labels, value in series if label in labels]


def engines(server: int) -> list[psutil.Process]:
    """Engines that a server process has, the oldest first."""
    found: dict[float, psutil.Process] = {}
    for child in psutil.Process(server).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "corepipe.engine.process" in child.cmdline():
                found[child.create_time()] = child
    return [found[began] for began in sorted(found)]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "corepipe", *map(str, arguments)]


def run(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; the limit is there for one that hangs.

    `serve` gets a free port unless one is given: two tests that run side by side must not share the default.
    Where no more than its arguments and its cache are its own, it does without the imports of a new process.
    """
    if arguments[:1] == ("serve",) and "--port" not in arguments:
        arguments = (*arguments, "--port", 0)
    environment = more.get("env", os.environ)
    if more.keys() <= {"env"} and warm.does(environment):
        return warm.run([str(argument) for argument in arguments], environment, PATIENCE_SECONDS)
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, **more
    )


@contextmanager
def served(*arguments: object, anew: bool = False, spare: bool = False) -> Iterator[Served]:
    """`corepipe serve` on a free port, without a spare engine unless it is to have one.

    anew: with that and with the imports of a new process, as a user starts it.
    """
    flags = ["serve", "--port", "0", *map(str, arguments)]
    process: subprocess.Popen[str] | warm.Forked
    if warm.does(os.environ) and not anew:
        process = warm.Forked(flags, os.environ, spare=spare)
    else:
        process = subprocess.Popen(
            command(*flags), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    try:
        yield Served(process)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children() if process.poll() is None else []:
                spent.gone(child)
                child.kill()
        process.kill()
        process.wait()
        process.stderr.close()


def default_model() -> Path:
    """The default model's file, fetched if need be; skips the test where it cannot be had."""
    try:
        return hub.resolve(hub.DEFAULT_MODEL)
    except UserError as error:
        pytest.skip(f"the default model cannot be had: {error.message}")


def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """Polls for a condition that must come true, more and more rarely; False if it never does."""
    deadline, pause = time.monotonic() + seconds, 0.01
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
    return True
