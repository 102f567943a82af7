"""What a front says to its part in Ray, a process of its own, and hears of it: frames over a socket pair.

With Ray out of order that process hangs or ends; the front, and what its hosts compute, go on.
"""

from __future__ import annotations

import msgspec

from corepipe.engine.process.frames import FrameDecoder


class PlacedHost(msgspec.Struct, frozen=True):
    """A host that is there: see `connector.HostAddress`.  node_id: Ray's."""

    name: str
    node: str
    node_id: str
    address: str
    port: int
    certificate: str


class BeginFleet(msgspec.Struct, frozen=True, tag=True):
    """The first word.  certificate: the front's, which hosts trust; known: hosts that it has already.

    total: so many are wanted, those included.
    """

    fleet: str
    front: str
    certificate: str
    total: int
    known: list[PlacedHost] = []


class WantedHosts(msgspec.Struct, frozen=True, tag=True):
    """So many hosts are wanted from now on, those included that are there."""

    count: int


class StopHost(msgspec.Struct, frozen=True, tag=True):
    """This host is of no use any more."""

    name: str


class HostState(msgspec.Struct, frozen=True):
    """What `corepipe fleet status` shows of a host.  open: requests that it has."""

    name: str
    node: str
    state: str
    open: int


class FrontStatus(msgspec.Struct, frozen=True, tag=True):
    """What a front has, for those who ask the fleet.  model: what it serves."""

    model: str
    hosts: list[HostState]


class HostUp(msgspec.Struct, frozen=True, tag=True):
    """A host is there and listens."""

    host: PlacedHost


class HostDown(msgspec.Struct, frozen=True, tag=True):
    """A host is gone, as far as Ray knows."""

    name: str


class DrainHost(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants the node of this host to be free."""

    name: str


class UnauthenticatedCounts(msgspec.Struct, frozen=True, tag=True):
    """How many requests without a token Ray has refused, by machine name: see `unauthenticated`."""

    refused: dict[str, int]


class FleetRefusal(msgspec.Struct, frozen=True, tag=True):
    """There is no such fleet, or it does not take us; what the user is told."""

    message: str


ToManager = BeginFleet | WantedHosts | StopHost | FrontStatus
FromManager = HostUp | HostDown | DrainHost | UnauthenticatedCounts | FleetRefusal


def manager_decoder() -> FrameDecoder[FromManager]:
    """Decodes what the part in Ray says."""
    return FrameDecoder(msgspec.msgpack.Decoder(FromManager))


def order_decoder() -> FrameDecoder[ToManager]:
    """Decodes what the front says to it."""
    return FrameDecoder(msgspec.msgpack.Decoder(ToManager))
