"""A command or a server in a fork of a process that has imported what it needs, which takes longer than it.

What it is given and what it leaves are those of `python -m corepipe`: arguments, environment, directory,
signals; what it writes, and its exit code.  The process that is forked has no threads, and does nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

Output = str | Path | Connection

IMPORTED = (
    "corepipe.cli.app",
    "corepipe.cli.start.launch",
    "corepipe.cli.run.serve",
    "corepipe.cli.serve",
    "corepipe.cli.run.plan",
    "corepipe.cli.run.profile",
    "corepipe.cli.run.simulate",
    "tests.warm",
)
"""Modules that most commands need; a command imports the others itself."""

READ_LATER = {
    "COLUMNS",
    "COREPIPE_CACHE",
    "HF_HUB_OFFLINE",
    "LINES",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PYTEST_CURRENT_TEST",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_BACKEND_LOG_LEVEL",
    "RAY_USAGE_STATS_ENABLED",
    "TOKENIZERS_PARALLELISM",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS",
}
"""Variables that nothing of what is imported has looked at; tests and their imports set the last ones."""
_BEGAN = dict(os.environ)


def does(environment: Mapping[str, str]) -> bool:
    """True if a process with this environment would import the same modules."""
    differing = {key for key, _ in environment.items() ^ _BEGAN.items()}
    return differing <= READ_LATER


def processes() -> list[psutil.Process]:
    """The one that is forked, once there is one; it waits for its forks."""
    pid = forkserver._forkserver._forkserver_pid
    return [] if pid is None else [psutil.Process(pid)]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context


class Forked:
    """A running command, with as much of a `subprocess.Popen` as is asked of one; `stderr` as it comes."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], *, spare: bool) -> None:
        """`spare`: a server keeps another engine at hand, whose imports are a third of its processor time."""
        reader, writer = os.pipe()
        self.args, self.stderr = list(arguments), os.fdopen(reader)
        with Connection(writer, readable=False) as stderr:
            self._process = _process(arguments, environment, [os.devnull, stderr], spare=spare)
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, seconds or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Raises subprocess.TimeoutExpired, and ends it, where it takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _process(arguments, environment, files)
        try:
            process.join(seconds)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(list(arguments), seconds)
        finally:
            process.kill()  # where it is there still
            process.join()
        stdout, stderr = (file.read_text() if file.exists() else "" for file in files)
    return subprocess.CompletedProcess(list(arguments), process.exitcode, stdout, stderr)


def _process(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    outputs: Sequence[Output],
    *,
    spare: bool = True,
) -> BaseProcess:
    """A started one; `outputs` are where its stdout and stderr go."""
    target = (arguments, dict(environment), str(Path.cwd()), outputs, spare)
    process = _context().Process(target=_command, args=target)
    process.start()
    return process


def _command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    outputs: Sequence[Output],
    spare: bool,
) -> None:
    """`python -m corepipe`, in the child."""
    if not spare:
        from corepipe.serving.supervision.supervisor import SpareProcess, Succession  # noqa: PLC0415 -- not in the tests' process

        Succession.prepare = SpareProcess.prepare = lambda _self: None  # type: ignore[method-assign]
    for number, output in enumerate(outputs, 1):
        if isinstance(output, Connection):
            os.dup2(output.fileno(), number)
            output.close()
            continue
        opened = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    try:
        runpy.run_module("corepipe", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
