"""The engine's loop: commands in, turns of the driver, events out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from corepipe.serving.engine.driver import Driver
from corepipe.serving.messages import Command, Output, Outputs, Shutdown, Stats

STATS_SECONDS = 0.05
"""Least time between two Stats of a replica, except that going idle is always told."""


class Inbox(Protocol):
    """Where commands come from."""

    def receive(self, timeout: float | None) -> list[Command]:
        """What has come; waits up to `timeout` seconds for the first (None: until it comes).

        Raises EOFError when the other side is gone.
        """


def serve(
    driver: Driver,
    inbox: Inbox,
    send: Callable[[Outputs], None],
    seconds: Callable[[], float] = time.monotonic,
    epoch: int = 0,
) -> None:
    """Runs the driver until Shutdown, which gives up every request, or until the other side is gone.

    Outputs are sent after the next batch has been submitted, so that encoding overlaps computing.
    `seconds` paces the Stats; `epoch` is the engine's number.
    """

    def tell(outputs: list[Output], stats: list[Stats]) -> None:
        """One message; one more for each further replica's stats."""
        if outputs or stats:
            send(Outputs(outputs, stats[0] if stats else None, epoch=epoch))
        for more in stats[1:]:
            send(Outputs([], more, epoch=epoch))

    tell([], driver.stats())  # gauges are there before the first request
    last_stats = now = seconds()
    while True:
        driver.complete()
        try:
            commands = inbox.receive(_patience(driver, last_stats + STATS_SECONDS - now))
        except EOFError:
            return
        if not _handle(driver, commands):
            tell(driver.outputs(), driver.stats())
            return
        driver.submit()
        outputs = driver.outputs()
        now = seconds()
        stats_due = now - last_stats >= STATS_SECONDS or not driver.busy
        if stats_due:
            last_stats = now
        tell(outputs, driver.stats() if stats_due else [])


def _patience(driver: Driver, until_stats: float) -> float | None:
    """How long to wait for commands: a step of minutes must not hold the Stats back."""
    patience = driver.patience()
    if patience is None or not driver.busy:
        return patience
    return min(patience, max(0.0, until_stats))


def _handle(driver: Driver, commands: list[Command]) -> bool:
    """False after a Shutdown."""
    for command in commands:
        if isinstance(command, Shutdown):
            driver.abort_all()
            return False
        driver.handle(command)
    return True
