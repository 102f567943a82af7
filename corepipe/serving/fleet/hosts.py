"""Where a front's hosts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # it has a fleet, and a fleet tells it
    from corepipe.serving.fleet.client import FleetClient


class Fleet(Protocol):
    """Where hosts come from.  All of it belongs to the event loop of the client."""

    async def start(self, client: FleetClient) -> None:
        """From now on the client is told of hosts.  Raises UserError."""

    def replace(self, name: str) -> None:
        """This host is of no use any more; another one, if any is to be had."""

    def want(self, count: int) -> None:
        """So many hosts from now on; those that are too many are drained by the client."""

    async def close(self) -> None:
        """No host is needed any more."""
