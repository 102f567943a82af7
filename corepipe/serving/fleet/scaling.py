"""A fleet that grows and shrinks with its work: looks, asks for a host more, or drains one."""

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
    """What grows and shrinks: see `client.FleetClient`."""

    @property
    def remotes(self) -> Sequence[RemoteHost]:
        """The hosts."""

    def work(self, wanted: int, now: float) -> FleetLoad:
        """What there is to do, where so many hosts are wanted."""

    def want(self, count: int) -> None:
        """So many hosts from now on."""

    def drain(self, name: str) -> None:
        """A host gets nothing more."""


async def scale(fleet: ScaledFleet, scaler: Scaler) -> None:
    """Looks each second whether another number of hosts is wanted."""
    wanted = scaler.least
    while True:
        await asyncio.sleep(SCALE_SECONDS)
        now = monotonic()
        before, wanted = wanted, scaler.wanted(fleet.work(wanted, now), now)
        if wanted != before:
            _log().warning("%d hosts are wanted, instead of %d", wanted, before)
            fleet.want(wanted)
        serving = [remote for remote in fleet.remotes if remote.takes]
        if wanted < len(serving):
            fleet.drain(min(serving, key=lambda remote: len(remote.open)).at.name)


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
