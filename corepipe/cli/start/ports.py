"""The ports of a server that is about to start: they are opened first, so that errors come at once."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from corepipe.serving.api.http.limits import make_room, too_few_files
from corepipe.serving.api.http.ports import ServerPort, check_bind, listen_all, open_at
from corepipe.serving.api.http.tls import tls_certificate
from corepipe.serving.config import ServerConfig
from corepipe.serving.keys import read_keys


def open_ports(server: ServerConfig) -> list[socket.socket]:
    """Opens the sockets of all ports, the public one first.  Raises UserError."""
    check_bind(server)
    tls_certificate(server.ssl_certfile, server.ssl_keyfile)  # known at once if it cannot be had
    read_keys(server.api_keys, server.api_key_file)
    return listen_all(server)


def urls_of(listeners: Sequence[socket.socket], server: ServerConfig) -> dict[ServerPort, str]:
    """Returns the URLs of the sockets of all ports."""
    return {port: _url(one, server) for port, one in zip(open_at(server), listeners, strict=True)}


def _url(listener: socket.socket, server: ServerConfig) -> str:
    scheme = "http" if server.ssl_certfile is None else "https"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def warnings_of(server: ServerConfig) -> list[str]:
    """Returns warnings on the server's settings.  Raises the limit of open files for its connections.

    Injected faults are named, so that nobody who reads the log is surprised by them.
    """
    warnings = []
    if (warning := too_few_files(server.max_connections, make_room(server.max_connections))) is not None:
        warnings.append(f"corepipe: {warning}")
    if server.inject:
        warnings.append(
            f"corepipe: --inject makes responses fail on purpose: {', '.join(map(str, server.inject))}"
        )
    return warnings


_TOLD = {ServerPort.ADMIN: "metrics, placement and control", ServerPort.METRICS: "metrics, without a key"}


def other_ports(urls: Mapping[ServerPort, str]) -> list[str]:
    """Returns a line for each port but the public one."""
    return [f"{_TOLD[port]}: {url}" for port, url in urls.items() if port in _TOLD]
