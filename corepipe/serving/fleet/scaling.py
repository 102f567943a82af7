"""A fleet that grows and shrinks with its load: it asks for one host more, or drains one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from corepipe.serving.fleet.remote import RemoteHost
from corepipe.serving.fleet.scaler import FleetLoad, Scaler

SCALE_SECONDS = 1.0


class ScaledFleet(Protocol):
    """A client of a fleet whose number of hosts can change: see `client.FleetClient`."""

    @property
    def remotes(self) -> Sequence[RemoteHost]:
        """The hosts."""

    def work(self, wanted: int, now: float) -> FleetLoad:
        """Returns the load of the fleet.  wanted: the number of hosts that are wanted."""

    def want(self, count: int) -> None:
        """Sets the number of hosts."""

    def drain(self, name: str) -> None:
        """Gives a host no new requests."""


async def scale(fleet: ScaledFleet, scaler: Scaler) -> None:
    """Checks each second whether the number of wanted hosts changes, and changes it."""
    wanted = scaler.least
    while True:
        await asyncio.sleep(SCALE_SECONDS)
        now = monotonic()
        before, wanted = wanted, scaler.wanted(fleet.work(wanted, now), now)
        if wanted != before:
            _log().warning("scaling the fleet from %d to %d hosts", before, wanted)
            fleet.want(wanted)
        serving = [remote for remote in fleet.remotes if remote.takes]
        if wanted < len(serving):
            fleet.drain(min(serving, key=lambda remote: len(remote.open)).at.name)


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
