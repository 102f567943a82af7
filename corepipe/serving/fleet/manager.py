"""The process of a front that speaks with Ray: `python -m corepipe.serving.fleet.manager FD`.

FD is one end of a socket pair.  It keeps as many hosts as the front wants, each an actor on a machine of its
own, and reports their addresses.  When the front is gone it ends them.  When Ray's head is gone it ends
itself; the front starts it anew.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from corepipe.engine.channel import FrameDecoder, encode_frame
from corepipe.errors import UserError
from corepipe.serving.fleet.actor import HostActor
from corepipe.serving.fleet.cluster import HOST, NAMESPACE, Cluster, Node
from corepipe.serving.fleet.manager_messages import (
    BeginFleet,
    DrainHost,
    FleetRefusal,
    FromManager,
    FrontStatus,
    HostDown,
    HostUp,
    PlacedHost,
    StopHost,
    ToManager,
    UnauthenticatedCounts,
    WantedHosts,
)
from corepipe.signals import leave_to_parent

TURN_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""The time between two looks at the nodes."""

REST_SECONDS = 5.0
"""The time for which a node whose host was lost gets no other."""

HEADLESS_SECONDS = 20.0
"""The time without an answer of the head after which this process ends: a driver of a cluster that is gone
is of no use for the next one."""

END_SECONDS = 8.0
"""The time to end the hosts in when the front is gone."""

READ_BYTES = 1 << 16
EXIT_FAULT, EXIT_USER = 1, 2


@dataclass(slots=True)
class _ManagedHost:
    """A host and its actor (None where Ray does not know it any more).

    waited: the pending call of the actor.  placed: where it listens; None until it does.
    """

    node: Node
    actor: Any = None
    waited: Any = None
    placed: PlacedHost | None = None
    draining: bool = False


class Manager:
    """Keeps hosts on the nodes of a fleet.  Raises UserError where the fleet cannot be used."""

    def __init__(self, begin: BeginFleet, connection: socket.socket) -> None:
        self._cluster = Cluster(begin.fleet, "--fleet")
        self._ray: Any = importlib.import_module("ray")  # of the extra
        _connect(begin.fleet)
        self._begin = begin
        self._connection = connection
        self._total = begin.total
        self._hosts: dict[str, _ManagedHost] = {}
        self._rests: dict[str, float] = {}
        self._told: FrontStatus | None = None
        self._unauthenticated: dict[str, int] = {}
        self._count = 0
        self._looked = self._answered = time.monotonic()
        self._looked -= LOOK_SECONDS
        for placed in begin.known:
            self._adopt(placed)

    def take(self, order: ToManager) -> None:
        """Takes a message of the front."""
        if isinstance(order, WantedHosts):
            self._total = order.count
        elif isinstance(order, StopHost):
            self._end(order.name)
        elif isinstance(order, FrontStatus):
            self._told = order

    def turn(self) -> None:
        """Looks at the hosts and the nodes once.  Raises UserError where the head is gone for too long."""
        self._collect()
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            try:
                self._look(now)
                self._answered = now
            except UserError as error:
                if now - self._answered > HEADLESS_SECONDS:
                    raise
                _log().warning("hosts are not replaced until the head answers: %s", error.message)

    def end(self) -> None:
        """Ends all hosts."""
        for name in list(self._hosts):
            with contextlib.suppress(Exception):  # some are gone already
                self._end(name)

    def _look(self, now: float) -> None:
        nodes = self._cluster.nodes()
        drained = {node.id for node in nodes if node.drained}
        for name, host in self._hosts.items():
            if host.node.id in drained and not host.draining:
                host.draining = True
                self._tell(DrainHost(name))
        missing = self._total - sum(not host.draining for host in self._hosts.values())
        if missing > 0:
            for node in self._free(nodes, now)[:missing]:
                self._place(node)
        if self._told is not None:
            self._cluster.leave_note(self._begin.front, self._told)
        unauthenticated = self._cluster.unauthenticated()
        if unauthenticated != self._unauthenticated:
            self._unauthenticated = unauthenticated
            self._tell(UnauthenticatedCounts(unauthenticated))

    def _free(self, nodes: list[Node], now: float) -> list[Node]:
        """Returns the nodes that may get a host now."""
        named = self._ray.util.list_named_actors(all_namespaces=True)
        taken = {each["name"] for each in named if each["namespace"] == NAMESPACE}
        ours = {host.node.id for host in self._hosts.values()}
        return [
            node
            for node in nodes
            if node.takes_host
            and not node.drained
            and node.id not in ours
            and _actor_name(node.id) not in taken
            and now >= self._rests.get(node.id, 0.0)
        ]

    def _place(self, node: Node) -> None:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {
            "name": _actor_name(node.id),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": 0,
            "resources": {HOST: 1},
            "max_restarts": 0,
            "scheduling_strategy": there,
        }
        self._count += 1
        name = f"{node.name}.{self._count}.{self._begin.front[:6]}"
        actor = self._ray.remote(HostActor).options(**options).remote()
        self._hosts[name] = _ManagedHost(node, actor, actor.listen.remote(self._begin.certificate))

    def _adopt(self, placed: PlacedHost) -> None:
        """Takes over a host of an earlier manager; one that Ray does not know any more cannot be ended."""
        node = Node(placed.node_id, placed.node, placed.address, alive=True, takes_host=True, drained=False)
        host = self._hosts[placed.name] = _ManagedHost(node, placed=placed)
        with contextlib.suppress(ValueError):
            host.actor = self._ray.get_actor(_actor_name(placed.node_id), NAMESPACE)
            host.waited = host.actor.ended.remote()

    def _collect(self) -> None:
        """Takes the answers of actors: where they listen, or that they are gone."""
        waited = {host.waited: name for name, host in self._hosts.items() if host.waited is not None}
        if not waited:
            time.sleep(TURN_SECONDS)
            return
        done, _ = self._ray.wait(list(waited), num_returns=1, timeout=TURN_SECONDS)
        for reference in done:
            self._answer(waited[reference], self._hosts[waited[reference]])

    def _answer(self, name: str, host: _ManagedHost) -> None:
        try:
            found = self._ray.get(host.waited)
        except Exception as error:  # whatever the cause is, another host is started elsewhere
            _log().warning("host %s is gone and is replaced: %s", name, str(error).partition("\n")[0])
            self._forget(name)
            return
        if host.placed is not None:
            self._forget(name)
            return
        address, port, certificate = found
        host.placed = PlacedHost(name, host.node.name, host.node.id, address, port, certificate)
        host.waited = host.actor.ended.remote()
        self._tell(HostUp(host.placed))

    def _forget(self, name: str) -> None:
        host = self._hosts.get(name)
        if host is not None:
            self._rests[host.node.id] = time.monotonic() + REST_SECONDS
            self._end(name)
            self._tell(HostDown(name))

    def _end(self, name: str) -> None:
        host = self._hosts.pop(name, None)
        if host is not None and host.actor is not None:
            self._ray.kill(host.actor, no_restart=True)

    def _tell(self, news: FromManager) -> None:
        self._connection.sendall(encode_frame(news))


def main(fd: int) -> int:
    """Runs until the front is gone.  Returns the exit code."""
    leave_to_parent()
    with socket.socket(fileno=fd) as connection:
        orders: queue.SimpleQueue[ToManager | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(connection, orders), daemon=True).start()
        begin = orders.get()
        if not isinstance(begin, BeginFleet):
            return 0
        try:
            _manage(Manager(begin, connection), orders)
        except UserError as error:
            with contextlib.suppress(OSError):
                connection.sendall(encode_frame(FleetRefusal(error.message)))
            return EXIT_USER
        except ConnectionError:  # the front is gone
            return 0
    return 0


def _manage(manager: Manager, orders: queue.SimpleQueue[ToManager | None]) -> None:
    """Runs until the front is gone, then ends the hosts; hosts outlive a head that is gone."""
    while True:
        while not orders.empty():
            order = orders.get()
            if order is None:
                manager.end()
                return
            manager.take(order)
        manager.turn()


def _read(connection: socket.socket, orders: queue.SimpleQueue[ToManager | None]) -> None:
    """Puts the front's messages into a queue, then None; then ends this process soon, whatever Ray does."""
    frames = FrameDecoder[ToManager](ToManager)
    with contextlib.suppress(OSError):
        while data := connection.recv(READ_BYTES):
            for order in frames.feed(data):
                orders.put(order)
    orders.put(None)
    time.sleep(END_SECONDS)
    os._exit(EXIT_FAULT)


def _connect(address: str) -> None:
    """Connects to Ray.  Raises UserError where this machine is not part of the fleet."""
    ray = importlib.import_module("ray")  # of the extra
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises whatever it has
        first = str(error).strip().partition("\n")[0]
        words = f"this machine is not part of the fleet; run corepipe fleet join {address} ({first})"
        raise UserError(f"--fleet {address}: {words}") from error


def _actor_name(node_id: str) -> str:
    """Names the actor of a node's host; a node has one host at most."""
    return f"host-{node_id}"


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
