"""The accepting of connections by a host goes on, whatever clients do."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from corepipe.serving.fleet import host as door
from corepipe.serving.fleet.host import Host
from corepipe.serving.fleet.identity import PEER, Identity
from tests.serving.fleet.fleet_support import until


async def test_a_host_that_could_not_let_somebody_in_lets_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accepting fails with too many open files; afterwards the front must be able to connect."""
    monkeypatch.setattr(door, "PAUSE_SECONDS", 0.01)
    front, own = Identity.make("front"), Identity.make("host")
    host = Host(own.server(front.certificate))
    loop = asyncio.get_running_loop()
    real, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files")] * 20

    async def accept(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return await real(listener)

    monkeypatch.setattr(loop, "sock_accept", accept)
    address, port = await host.listen("127.0.0.1")
    context = front.client(own.certificate)
    _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=PEER)
    assert not failures
    writer.close()
    stranger = Identity.make("mallory").client(own.certificate)
    _, knocking = await asyncio.open_connection(address, port, ssl=stranger, server_hostname=PEER)
    await until(lambda: host.refused == {"certificate": 1})
    knocking.close()
    await host.close()
