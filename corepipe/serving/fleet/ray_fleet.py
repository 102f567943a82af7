"""Hosts from Ray, for a front that must not depend on Ray: a process of its own speaks with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import cast

from corepipe.engine.channel import FrameDecoder, FrameError, encode_frame
from corepipe.errors import UserError
from corepipe.serving.fleet.connector import HostAddress
from corepipe.serving.fleet.hosts import Front
from corepipe.serving.fleet.manager_messages import (
    BeginFleet,
    DrainHost,
    FleetRefusal,
    FromManager,
    FrontStatus,
    HostState,
    HostUp,
    PlacedHost,
    StopHost,
    UnauthenticatedCounts,
    WantedHosts,
)
from corepipe.signals import held_back

COMMAND = (sys.executable, "-P", "-m", "corepipe.serving.fleet.manager")

PAUSE_SECONDS = 3.0
"""The pause before an ended manager is started anew; meanwhile hosts go on, lost ones are not replaced."""

NOTE_SECONDS = 1.0
"""The time between two notes about the hosts of the front."""

END_SECONDS = 10.0


class RayFleet:
    """A `hosts.Fleet` of Ray: `replicas` hosts of the fleet whose head is at `address`."""

    def __init__(self, address: str, replicas: int, model: str) -> None:
        self._address = address
        self._total = replicas
        self._model = model
        self._front = secrets.token_hex(8)
        self._known: dict[str, PlacedHost] = {}
        self._client: Front | None = None
        self._manager: _ManagerProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, client: Front) -> None:
        self._client = client
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._note())]

    def replace(self, name: str) -> None:
        self._known.pop(name, None)
        self._order(StopHost(name))

    def want(self, count: int) -> None:
        self._total = count
        self._order(WantedHosts(count))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._manager is not None:
            await self._manager.close()

    def _order(self, order: StopHost | FrontStatus | WantedHosts) -> None:
        if self._manager is not None:
            self._manager.send(order)

    async def _keep(self) -> None:
        """Keeps a manager running: a new one after each that ends."""
        assert self._client is not None
        while True:
            begin = BeginFleet(
                self._address, self._front, self._client.certificate, self._total, [*self._known.values()]
            )
            self._manager = await _ManagerProcess.started(begin, self._hear)
            await self._manager.lost.wait()
            await self._manager.close()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _note(self) -> None:
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            assert self._client is not None
            states = [
                HostState(remote.at.name, remote.at.node, remote.state, len(remote.open))
                for remote in self._client.remotes
            ]
            self._order(FrontStatus(self._model, states))

    def _hear(self, news: FromManager) -> None:
        client = self._client
        assert client is not None
        if isinstance(news, HostUp):
            placed = self._known[news.host.name] = news.host
            client.add(HostAddress(placed.name, placed.node, placed.address, placed.port, placed.certificate))
        elif isinstance(news, DrainHost):
            client.drain(news.name)
        elif isinstance(news, UnauthenticatedCounts):
            client.report_unauthenticated(news.refused)
        elif isinstance(news, FleetRefusal):
            if not self._known:
                client.fail(UserError(news.message))
            _log().warning("lost hosts are not replaced until the fleet's head answers: %s", news.message)
        else:
            self._known.pop(news.name, None)
            client.remove(news.name)


class _ManagerProcess(asyncio.Protocol):
    """The process of `manager`, and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], hear: Callable[[FromManager], None]) -> None:
        self.lost = asyncio.Event()
        self._process = process
        self._hear = hear
        self._frames = FrameDecoder[FromManager](FromManager)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def started(cls, begin: BeginFleet, hear: Callable[[FromManager], None]) -> _ManagerProcess:
        """Starts a manager in a session of its own, which signals to the server do not reach."""
        ours, theirs = socket.socketpair()
        with theirs, held_back():
            process = subprocess.Popen(  # noqa: S603
                [*COMMAND, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        manager = cls(process, hear)
        await asyncio.get_running_loop().create_unix_connection(lambda: manager, sock=ours)
        manager.send(begin)
        return manager

    def send(self, order: object) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(order))

    async def close(self) -> None:
        """Closes the connection, at which the manager ends its hosts."""
        if self._transport is not None:
            self._transport.abort()
        await asyncio.to_thread(self._end)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        with contextlib.suppress(FrameError):
            for news in self._frames.feed(data):
                self._hear(news)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost.set()

    def _end(self) -> None:
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
