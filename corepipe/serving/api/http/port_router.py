"""The ports of one server: the public port, the admin port and the metrics port."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from starlette.types import ASGIApp, Receive, Scope, Send

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
