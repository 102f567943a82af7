"""Interfaces of the source of a front's hosts, and of the front as that source sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from corepipe.errors import UserError
from corepipe.serving.fleet.connector import HostAddress
from corepipe.serving.fleet.remote import RemoteHost


class Front(Protocol):
    """The front (a `FleetClient`) as a source of hosts sees it."""

    @property
    def certificate(self) -> str:
        """The front's certificate, in PEM."""

    @property
    def remotes(self) -> Sequence[RemoteHost]:
        """The hosts that the front knows."""

    def add(self, at: HostAddress) -> None:
        """Links the front to a host."""

    def drain(self, name: str) -> None:
        """Gives a host no new requests, and ends it when its open ones are done."""

    def remove(self, name: str) -> None:
        """Drops a host that is gone."""

    def report_unauthenticated(self, refused: Mapping[str, int]) -> None:
        """Counts connections that had no token, by the node that refused them."""

    def fail(self, error: UserError) -> None:
        """Ends the start of the front with an error."""


class Fleet(Protocol):
    """A source of hosts.  All of it belongs to the event loop of the client."""

    async def start(self, client: Front) -> None:
        """Begins to report hosts to the client.  Raises UserError."""

    def replace(self, name: str) -> None:
        """Gives up a host that is of no use any more, and gets another one if there is any."""

    def want(self, count: int) -> None:
        """Sets the number of hosts; the client drains those that are too many."""

    async def close(self) -> None:
        """Gives up all hosts."""
