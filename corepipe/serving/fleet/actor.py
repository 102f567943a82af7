"""A host as an actor of Ray: Ray starts it on a machine, and carries two certificates; nothing else."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket

from corepipe.serving.fleet.host import Host
from corepipe.serving.fleet.identity import Identity


class HostActor:
    """One machine's host.  Its event loop does nothing but carry frames: no step blocks it."""

    def __init__(self) -> None:
        self._work: asyncio.Task[None] | None = None

    async def listen(self, trusted: str) -> tuple[str, int, str]:
        """For the front whose certificate is `trusted`: where it listens, and the host's certificate."""
        ray = importlib.import_module("ray")  # of the extra
        identity = Identity.make(socket.gethostname())
        host = Host(identity.server(trusted))
        address, port = await host.listen(ray.util.get_node_ip_address())
        self._work = asyncio.create_task(_until_its_end(host))
        return address, port, identity.certificate

    async def ended(self) -> None:
        """Never returns: whoever asks is told by Ray when the host is gone."""
        await asyncio.Event().wait()


async def _until_its_end(host: Host) -> None:
    """A host without a front has nothing to wait for, and Ray, which may be out of order, is not asked."""
    await host.ended.wait()
    await host.close()
    os._exit(0)
