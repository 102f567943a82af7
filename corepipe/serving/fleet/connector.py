"""The front's links to its hosts, in a thread of their own: beats do not wait for the rest of the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from corepipe.serving.fleet.identity import PEER
from corepipe.serving.fleet.link import FleetLink
from corepipe.serving.fleet.wire import SILENT_SECONDS, FromHost, Hello
from corepipe.version import __version__

FIRST_PAUSE, MOST_PAUSE = 0.1, 2.0
"""Seconds before another try to reach a host; twice as long each time, up to the second figure."""


@dataclass(frozen=True, slots=True)
class HostAddress:
    """The address of a host, and its `certificate` in PEM, from the control plane.  node: its machine."""

    name: str
    node: str
    address: str
    port: int
    certificate: str


class LinkThread:
    """A thread with one event loop for all links."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the thread."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the thread; calls keep their order."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def close(self) -> None:
        """Ends the thread; links that are open end with it."""
        self.call(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class Connector:
    """Keeps a link to a host: a new one after each that is lost, each with a lease of its own.

    It is made and used in the event loop of the server, in which it calls `heard` with messages of the host
    and their lease, and `down` with the lease and the reason when the link is lost.
    """

    def __init__(
        self,
        links: LinkThread,
        at: HostAddress,
        context: ssl.SSLContext,
        config: dict[str, Any],
        heard: Callable[[int, Sequence[FromHost]], None],
        down: Callable[[int, str], None],
    ) -> None:
        self._links = links
        self._at = at
        self._context = context
        self._config = config
        self._heard = heard
        self._down = down
        self._home = asyncio.get_running_loop()
        self._lease = 0
        self._link: FleetLink[FromHost] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        links.run(self._keep())

    def send(self, lease: int, *messages: object) -> None:
        """Sends messages to the host, unless the lease is over."""
        self._links.call(self._send, lease, messages)

    def close(self) -> None:
        """Ends the link and makes no other."""
        self._links.call(self._close)

    def _send(self, lease: int, messages: Sequence[object]) -> None:
        if lease == self._lease and self._link is not None:
            self._link.send(*messages)

    def _close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._link.close()

    async def _keep(self) -> None:
        if self._closed:
            return
        self._task = asyncio.current_task()
        pause = FIRST_PAUSE
        while True:
            self._lease += 1
            lost = asyncio.get_running_loop().create_future()
            try:
                await self._connect(self._lease, lost)
                self._tell(self._down, self._lease, await lost)
                pause = FIRST_PAUSE
            except (OSError, TimeoutError):
                pause = min(2 * pause, MOST_PAUSE)
            await asyncio.sleep(pause)

    async def _connect(self, lease: int, lost: asyncio.Future[str]) -> None:
        """Connects.  Raises OSError or TimeoutError where the host is out of reach or is another one."""

        def take(messages: Sequence[FromHost]) -> None:
            self._tell(self._heard, lease, messages)

        def end(reason: str) -> None:
            if not lost.done():
                lost.set_result(reason)

        self._link = link = FleetLink(FromHost, take, end)
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_INET6 if ":" in self._at.address else socket.AF_INET)
        try:
            connection.settimeout(0.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(SILENT_SECONDS):
                await loop.sock_connect(connection, (self._at.address, self._at.port))
                await loop.create_connection(
                    lambda: link, sock=connection, ssl=self._context, server_hostname=PEER
                )
        except BaseException:
            connection.close()
            raise
        link.send(Hello(lease, __version__, self._config))

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server's loop has ended
            self._home.call_soon_threadsafe(function, *arguments)
