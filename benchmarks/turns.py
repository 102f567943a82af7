"""Processes that take turns at a machine: each is suspended but while it is its turn."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

REST_SECONDS = 1.0
"""Before each turn: what the one before has left comes to rest."""


def ends_all_at_sigterm() -> None:
    """SIGTERM ends a script as Ctrl-C does, and what it has started: a server that is left computes on."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@dataclass(frozen=True, slots=True)
class Contender:
    """What takes turns: how it is called, and its process, with what that has started."""

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
