"""A host as an actor of Ray: Ray starts it on a machine and passes two certificates, nothing else."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket

from corepipe.serving.fleet.host import Host
from corepipe.serving.fleet.identity import Identity


class HostActor:
    """The host of one machine.  Its event loop only carries frames: no step of an engine blocks it."""

    def __init__(self) -> None:
        self._work: asyncio.Task[None] | None = None

    async def listen(self, trusted: str) -> tuple[str, int, str]:
        """Listens for the front with the certificate `trusted`.  Returns (address, port, own certificate)."""
        ray = importlib.import_module("ray")  # of the extra
        identity = Identity.make(socket.gethostname())
        host = Host(identity.server(trusted))
        address, port = await host.listen(ray.util.get_node_ip_address())
        self._work = asyncio.create_task(_until_its_end(host))
        return address, port, identity.certificate

    async def ended(self) -> None:
        """Never returns: a caller learns from Ray when the host is gone."""
        await asyncio.Event().wait()


async def _until_its_end(host: Host) -> None:
    """Ends this process when the host has ended, without asking Ray, which may have failed."""
    await host.ended.wait()
    await host.close()
    os._exit(0)
