"""Messages between a front and its manager, the process that speaks with Ray: frames over a socket pair.

If Ray fails, that process hangs or ends; the front and the computations of its hosts go on.
"""

from __future__ import annotations

import msgspec


class PlacedHost(msgspec.Struct, frozen=True):
    """A host that listens: see `connector.HostAddress`.  node_id: Ray's id of its node."""

    name: str
    node: str
    node_id: str
    address: str
    port: int
    certificate: str


class BeginFleet(msgspec.Struct, frozen=True, tag=True):
    """The first message to a manager.

    fleet: HOST:PORT of the head.  front: an id of the front.  certificate: that of the front, which hosts
    trust. known: the hosts that the front has already.  total: the number of wanted hosts, the known ones
    included.
    """

    fleet: str
    front: str
    certificate: str
    total: int
    known: list[PlacedHost] = []


class WantedHosts(msgspec.Struct, frozen=True, tag=True):
    """The number of wanted hosts from now on, those included that exist already."""

    count: int


class StopHost(msgspec.Struct, frozen=True, tag=True):
    """A host that the front does not need any more: the manager ends it."""

    name: str


class HostState(msgspec.Struct, frozen=True):
    """The line of `corepipe fleet status` for a host.  open: the number of its open requests."""

    name: str
    node: str
    state: str
    open: int


class FrontStatus(msgspec.Struct, frozen=True, tag=True):
    """The hosts of a front, for commands that ask the fleet.  model: the model that the front serves."""

    model: str
    hosts: list[HostState]


class HostUp(msgspec.Struct, frozen=True, tag=True):
    """A new host listens."""

    host: PlacedHost


class HostDown(msgspec.Struct, frozen=True, tag=True):
    """A host is gone, according to Ray."""

    name: str


class DrainHost(msgspec.Struct, frozen=True, tag=True):
    """An operator drains the node of this host."""

    name: str


class UnauthenticatedCounts(msgspec.Struct, frozen=True, tag=True):
    """The numbers of requests without a token that Ray has refused, by machine: see `unauthenticated`."""

    refused: dict[str, int]


class FleetRefusal(msgspec.Struct, frozen=True, tag=True):
    """The fleet does not exist or does not accept this machine.  message: the error for the user."""

    message: str


ToManager = BeginFleet | WantedHosts | StopHost | FrontStatus
FromManager = HostUp | HostDown | DrainHost | UnauthenticatedCounts | FleetRefusal
