"""An engine that serves: a server's commands are the source of its loop, and it sends back the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Command, Output, Outputs, Shutdown, Stats
from corepipe.engine.process.prefix_changes import PrefixChanges

STATS_SECONDS = 0.05
"""Least time between two Stats of a replica, except that going idle is always reported."""


class Inbox(Protocol):
    """The source of commands."""

    def receive(self, timeout: float | None) -> list[Command]:
        """Returns the commands that have come; waits up to `timeout` seconds for the first (None: until it
        comes).

        Raises EOFError when the other side is gone.
        """


def serve(
    driver: Driver,
    inbox: Inbox,
    send: Callable[[Outputs], None],
    seconds: Callable[[], float] = time.monotonic,
    epoch: int = 0,
    prefixes: PrefixChanges | None = None,
) -> None:
    """Runs the driver until Shutdown, which aborts every request, or until the other side is gone.

    Outputs are sent after the next batch has been submitted, so that encoding overlaps computing. `seconds`
    paces the Stats; `epoch` is the engine's number. `prefixes`: collects the changes of its caches.
    """

    def send_all(outputs: list[Output], stats: list[Stats]) -> None:
        """Sends one message; one more for each further replica's stats."""
        found = None if prefixes is None else prefixes.take()
        if outputs or stats or found is not None:
            send(Outputs(outputs, stats[0] if stats else None, epoch=epoch, prefixes=found))
        for more in stats[1:]:
            send(Outputs([], more, epoch=epoch))

    send_all([], driver.stats())  # so that gauges exist before the first request
    commands = _Commands(driver, inbox, seconds())
    try:
        for _ in driver.turns(commands):
            outputs = driver.outputs()
            send_all(outputs, driver.stats() if commands.stats_due(seconds()) else [])
    except EOFError:
        return
    send_all(driver.outputs(), driver.stats())


class _Commands:
    """The commands of a server, as the source of a loop; and the times at which Stats are due."""

    def __init__(self, driver: Driver, inbox: Inbox, now: float) -> None:
        self._driver = driver
        self._inbox = inbox
        self._last_stats = self._now = now

    def next_arrival(self) -> float:
        return inf

    def receive(self) -> bool:
        """Returns False after a Shutdown, which aborts every request. Raises EOFError."""
        for command in self._inbox.receive(self._patience()):
            if isinstance(command, Shutdown):
                self._driver.abort_all()
                return False
            self._driver.handle(command)
        self._driver.release()
        return True

    def stats_due(self, now: float) -> bool:
        """Tells whether Stats are to be sent at the end of a turn."""
        self._now = now
        due = now - self._last_stats >= STATS_SECONDS or not self._driver.busy
        if due:
            self._last_stats = now
        return due

    def _patience(self) -> float | None:
        """Returns the seconds to wait for commands: a step of minutes must not delay the Stats."""
        patience = self._driver.patience()
        if patience is None or not self._driver.busy:
            return patience
        return min(patience, max(0.0, self._last_stats + STATS_SECONDS - self._now))
