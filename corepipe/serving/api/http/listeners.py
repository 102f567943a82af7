"""The sockets that a server listens on: checks that they are allowed, and opens them.

Runs before anything else of a server is imported.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from corepipe.errors import UserError
from corepipe.serving.api.http.port_router import open_at
from corepipe.serving.config import ServerConfig

BACKLOG = 2048
SEND_BUFFER = 128 * 1024
"""Bytes that the kernel buffers for a client that does not read; Linux doubles the value."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The usual loopback names, which need no parsing."""


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
    if host in _LOOPBACK:
        return True
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
