"""Processes that take turns on a machine: each is suspended except in its turn."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

REST_SECONDS = 1.0
"""Seconds of rest before each turn, in which the effects of the previous one end."""


def ends_all_at_sigterm() -> None:
    """Makes SIGTERM end a script as Ctrl-C does, with the processes that it has started: a server that is
    left would keep computing."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@dataclass(frozen=True, slots=True)
class Contender:
    """A participant that takes turns: its name, and its process with the processes that it has started."""

    name: str
    process: psutil.Process

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def suspend(self) -> None:
        for process in self.processes():
            process.suspend()

    @contextmanager
    def turn(self, rest: float = REST_SECONDS) -> Iterator[None]:
        for process in self.processes():
            process.resume()
        time.sleep(rest)
        try:
            yield
        finally:
            self.suspend()

    def end(self) -> None:
        family = self.processes()
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=10)
