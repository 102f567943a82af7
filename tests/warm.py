"""A command in a fork of a process that has imported what commands import, which takes longer than they do.

What it is given and what it leaves are those of `python -m corepipe`: arguments, environment, directory; what
it writes, and its exit code.  The process that is forked has no threads, and does nothing but that.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import psutil

IMPORTED = (
    "corepipe.cli.app",
    "corepipe.cli.launch",
    "corepipe.cli.run.plan",
    "corepipe.cli.run.profile",
    "corepipe.cli.run.simulate",
)
"""What most commands need; others import the rest by themselves."""

SET_BY_TOKENIZERS = {"TOKENIZERS_PARALLELISM", "TRANSFORMERS_NO_ADVISORY_WARNINGS"}
READ_LATER = {"COREPIPE_CACHE", "HF_HUB_OFFLINE", "PYTEST_CURRENT_TEST", *SET_BY_TOKENIZERS}
"""Variables that nothing of what is imported has looked at."""
_BEGAN = dict(os.environ)


def does(environment: Mapping[str, str]) -> bool:
    """Whether what is imported would be the same in a process of this environment."""
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


def run(
    arguments: Sequence[str], environment: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Raises subprocess.TimeoutExpired, and ends it, where it takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _context().Process(
            target=_command, args=(arguments, dict(environment), str(Path.cwd()), files)
        )
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), seconds)
        stdout, stderr = (file.read_text() if file.exists() else "" for file in files)
    return subprocess.CompletedProcess(list(arguments), process.exitcode, stdout, stderr)


def _command(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, files: Sequence[Path]
) -> None:
    """`python -m corepipe`, in the child."""
    for number, file in enumerate(files, 1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT)
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
