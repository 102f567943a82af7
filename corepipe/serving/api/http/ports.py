"""The ports of a server, and the sockets that it listens on: checks that they are allowed, and opens them.

The sockets are opened before anything else of a server is imported.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from enum import Enum

from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig


class ServerPort(Enum):
    """A port of the server; its value is the prefix of its flags."""

    PUBLIC = ""
    ADMIN = "admin-"
    METRICS = "metrics-"


STATE_KEY = "port"
"""The key of a connection's ServerPort in its state.  The socket decides it, not the request."""


def open_at(server: ServerConfig) -> dict[ServerPort, tuple[str, int]]:
    """Returns host and port number of each port that the server has, the public one first."""
    ports = {ServerPort.PUBLIC: (server.host, server.port)}
    if server.admin_port is not None:
        ports[ServerPort.ADMIN] = server.admin_host, server.admin_port
    if server.metrics_port is not None:
        ports[ServerPort.METRICS] = server.metrics_host, server.metrics_port
    return ports


class PortRouter:
    """ASGI middleware: passes requests from another port than the public one to that port's application."""

    def __init__(self, app: ASGIApp, others: Mapping[ServerPort, ASGIApp]) -> None:
        self._public = app
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came_by: ServerPort = (
            scope["state"].get(STATE_KEY, ServerPort.PUBLIC) if scope["type"] == "http" else ServerPort.PUBLIC
        )
        await self._others.get(came_by, self._public)(scope, receive, send)


BACKLOG = 2048
SEND_BUFFER = 128 * 1024
"""Bytes that the kernel buffers for a client that does not read; Linux doubles the value."""


def check_bind(server: ServerConfig) -> None:
    """Raises UserError unless each port is on loopback, or has API keys, or `insecure` is set.

    The port of metrics needs no keys on any host: it is for clients that cannot send one, and shows counts.
    """
    _check_bind("", server.host, keys=server.has_api_keys, insecure=server.insecure)
    if server.admin_port is not None:
        keys = any(server.admin_api_keys)
        _check_bind("admin-", server.admin_host, keys=keys, insecure=server.insecure)


def _check_bind(prefix: str, host: str, *, keys: bool, insecure: bool) -> None:
    if is_loopback(host) or keys or insecure:
        return
    raise UserError(
        f"--{prefix}host {host} can be reached from other machines: set --{prefix}api-key, "
        "or --insecure to serve anyone",
        f"{prefix}host",
    )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches `host`; the only name that counts is localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen_all(server: ServerConfig) -> list[socket.socket]:
    """Opens the sockets of all ports, the public one first.  Raises UserError as `listen` does."""
    return [listen(host, number, port.value) for port, (host, number) in open_at(server).items()]


def listen(host: str, port: int, prefix: str = "") -> socket.socket:
    """Opens a listening socket.  Raises UserError that names --`prefix`host or -port if it cannot."""
    try:
        name, passive = host.strip("[]"), socket.AI_PASSIVE
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=passive)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except socket.gaierror:
        raise UserError(f"--{prefix}host {host} is not a known address", f"{prefix}host") from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(
            f"cannot listen on {host}:{port} ({reason}): choose another --{prefix}port", "port"
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # accepted sockets inherit it
    return listener
