"""Fleets on one machine without Ray: hosts in processes, real sockets, and proxies that cut links."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil

from corepipe.engine.config import EngineConfig
from corepipe.serving.fleet.client import FleetClient
from corepipe.serving.fleet.connector import HostAddress
from corepipe.serving.fleet.identity import Identity
from tests.servers import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]


class HostProcess:
    """A host process that listens; it trusts the certificate in the file `trusted`."""

    def __init__(self, trusted: Path, name: str, assemble: str = "") -> None:
        command = [sys.executable, "-m", "tests.serving.fleet.host_process", str(trusted)]
        self.process = subprocess.Popen(
            [*command, *([assemble] if assemble else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        self._name = name

    @functools.cached_property
    def at(self) -> HostAddress:
        """Waits until it listens and returns its address."""
        assert self.process.stdout is not None
        return HostAddress(self._name, f"node-{self._name}", **json.loads(self.process.stdout.readline()))

    def engine(self) -> psutil.Process:
        """Returns the engine's process that serves; a younger one is its spare."""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda child: child.create_time())[0]

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Proxy:
    """A proxy between a front and a host; each direction can be stopped, and the bytes that pass are
    recorded.

    Stopped bytes are dropped: those behind them never fit again, as after a lost network.
    """

    def __init__(self, host: HostAddress) -> None:
        self._host = host
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.open = {"to_host": True, "to_front": True}
        self.seen: list[bytes] = []
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()
        name, node, certificate = host.name, host.node, host.certificate
        self.at = HostAddress(name, node, *self._listener.getsockname(), certificate)

    def inject(self, data: bytes) -> None:
        """Sends bytes to the host, in the middle of those of the front."""
        self._pairs[-1][1].sendall(data)

    def close(self) -> None:
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection((self._host.address, self._host.port))
                except OSError:
                    near.close()
                    continue
                self._pairs.append((near, far))
                for source, target, way in ((near, far, "to_host"), (far, near, "to_front")):
                    threading.Thread(target=self._pump, args=(source, target, way), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        whole = True
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                whole &= self.open[way]
                if whole:
                    if way == "to_host":
                        self.seen.append(data)
                    target.sendall(data)
            if whole and self.open[way]:
                target.shutdown(socket.SHUT_RDWR)


class Hosts:
    """A `hosts.Fleet` of hosts that exist already."""

    def __init__(self, *hosts: HostAddress, at_first: int | None = None) -> None:
        self._hosts = hosts
        self._first = len(hosts) if at_first is None else at_first
        self.replaced: list[str] = []
        self.wanted: list[int] = []
        self.client: FleetClient | None = None

    async def start(self, client: FleetClient) -> None:
        self.client = client
        for host in self._hosts[: self._first]:
            client.add(host)

    def replace(self, name: str) -> None:
        self.replaced.append(name)

    def want(self, count: int) -> None:
        """Adds the last host where it is wanted; there are no others."""
        self.wanted.append(count)
        if self.client is not None and count == len(self._hosts):
            self.client.add(self._hosts[-1])

    async def close(self) -> None:
        """Leaves the hosts running."""


@contextmanager
def hosts(folder: Path, count: int, assemble: str = "") -> Iterator[tuple[Identity, list[HostProcess]]]:
    """Starts `count` hosts; yields the identity of the front that they trust, and them."""
    identity = Identity.make("front")
    trusted = folder / "front.pem"
    trusted.write_text(identity.certificate)
    started: list[HostProcess] = []
    try:
        for number in range(count):
            started.append(HostProcess(trusted, f"h{number}", assemble))
        for host in started:
            assert host.at
        yield identity, started
    finally:
        for host in started:
            host.end()


@asynccontextmanager
async def front(
    identity: Identity, config: EngineConfig, *at: HostAddress
) -> AsyncIterator[tuple[FleetClient, Hosts]]:
    """Runs a client over these hosts, and yields it when all of them serve."""
    fleet = Hosts(*at)
    client = FleetClient(config, fleet, identity, None)
    await client.start()
    try:
        await until(lambda: all(remote.serves for remote in client.remotes))
        yield client, fleet
    finally:
        await client.close()


async def until(condition: object, seconds: float = PATIENCE_SECONDS) -> None:
    """Polls until a condition is true, which must then stay true: shorter changes are not seen."""
    async with asyncio.timeout(seconds):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)
