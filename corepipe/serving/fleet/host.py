"""A host: engines on one machine, one after the other, for a front that is elsewhere.

It supervises them as a server does its own, but keeps no journal: the front gives the requests of a lost
engine to another replica.  It obeys one front, by the latest of its leases.  When the front is silent, it
aborts all requests, since by then the front has begun them elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Sequence

from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.messages import Abort, Failed, Outputs, Ready, Submit
from corepipe.errors import UserError, shown
from corepipe.serving.fleet.link import FleetLink
from corepipe.serving.fleet.wire import Beat, EngineOrder, FromFront, Gone, Hello, Loaded
from corepipe.serving.supervision.child import EngineEnd
from corepipe.serving.supervision.engine_process import ENGINE_COMMAND, EngineError
from corepipe.serving.supervision.supervisor import Succession
from corepipe.version import __version__

HANDSHAKES = 16
"""The most connections that may be in their TLS handshake at a time."""

HANDSHAKE_SECONDS = 5.0

PAUSE_SECONDS = 0.1
"""The pause before another try to accept a connection after one failed."""

ORPHAN_SECONDS = 60.0
"""The time without a front after which a host ends: the front that started it does not come back."""


class Host:
    """Serves one front once `listen` is called; sets `ended` when it has nothing more to do.

    `context` accepts one peer: see `identity`.  `command` starts an engine.
    """

    def __init__(self, context: ssl.SSLContext, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self.ended = asyncio.Event()
        self.refused: Counter[str] = Counter()
        self._context = context
        self._command = command
        self._config: EngineConfig | None = None
        self._engines: Succession | None = None
        self._ready: Ready | None = None
        self._failure: Failed | None = None
        self._open: set[str] = set()
        self._prefixes: set[bytes] = set()
        self._lease = 0
        self._front: FleetLink[FromFront] | None = None
        self._told = False
        self._door = asyncio.Semaphore(HANDSHAKES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._orphaned: asyncio.TimerHandle | None = None

    async def listen(self, address: str) -> tuple[str, int]:
        """Listens for the front.  Returns the address and port.  Raises OSError."""
        listener = socket.create_server((address, 0), family=_family(address))
        listener.settimeout(0.0)
        self._start(self._accept(listener))
        self._wait_for_front()
        host, port = listener.getsockname()[:2]
        return host, port

    async def close(self) -> None:
        """Ends the engine and all links."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._orphaned is not None:
            self._orphaned.cancel()
        if self._front is not None:
            self._front.close()
        if self._engines is not None:
            await self._engines.close()
        self.ended.set()

    def take(self, news: Outputs) -> None:
        """Implements `EngineOwner`."""
        if news.outputs and self._engines is not None:
            self._engines.prove()
        if news.prefixes is not None:
            self._prefixes.update(news.prefixes.added)
            self._prefixes.difference_update(news.prefixes.dropped)
        self._open.difference_update(out.id for out in news.outputs if out.finish_reason is not None)
        if self._told and self._front is not None:
            self._front.send(news)
        else:
            self._tell_loaded()

    def lost(self, end: EngineEnd) -> None:
        """Implements `EngineOwner`."""
        assert self._engines is not None
        self._ready = None
        self._open.clear()
        self._prefixes.clear()
        if self._told and self._front is not None:
            self._front.send(Gone(self._engines.epoch, end.reason, end.words))
        self._told = False
        _log().warning("the engine %s; this host starts another one", end.words)

    def not_loaded(self) -> None:
        """Implements `EngineOwner`."""

    def replaced(self, ready: Ready) -> None:
        """Implements `EngineOwner`."""
        self._ready = ready
        self._tell_loaded()

    def gave_up(self, error: Exception) -> None:
        """Implements `EngineOwner`."""
        user_error = isinstance(error, UserError)
        self._failure = Failed(str(error), user_error)
        if self._front is not None:
            self._front.send(self._failure)

    def _start(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                await self._door.acquire()
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError:  # the client is gone already, or there are too many open files at the moment
                    self._door.release()
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                self._start(self._admit(connection))

    async def _admit(self, connection: socket.socket) -> None:
        """Completes the handshake of a connection; closes one without the key of the trusted certificate."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _IncomingFront(self).link,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, TimeoutError):  # ssl.SSLError is one
            self.refused["certificate"] += 1
            connection.close()
        finally:
            self._door.release()

    def obey(self, link: FleetLink[FromFront], hello: Hello) -> bool:
        """Takes the first message of a front.  Returns whether it is the current front from now on."""
        refusal = self._refusal(hello)
        if refusal is not None:
            link.send(refusal)
            return False
        if self._front is not None:
            self._front.close("superseded")
        if self._orphaned is not None:
            self._orphaned.cancel()
        self._lease, self._front, self._told = hello.lease, link, False
        if self._engines is None:
            self._config = _config(hello)
            self._engines = Succession(self._config, self._command, self, "the engine", tells_prefixes=True)
            self._start(self._load(self._engines))
        if self._failure is not None:
            link.send(self._failure)
        self._tell_loaded()
        return True

    def order(self, link: FleetLink[FromFront], order: EngineOrder) -> None:
        """Takes a command of the front; drops it where it is not for the current engine."""
        if link is not self._front or not self._told or self._engines is None:
            return
        if order.epoch != self._engines.epoch:
            self.refused["epoch"] += 1
        elif isinstance(order.command, Submit):
            self._submit(order.command, self._engines)
        else:
            self._engines.send(order.command)

    def gone(self, link: FleetLink[FromFront]) -> None:
        """Takes the loss of a link.  If it was that of the current front, all open requests are aborted."""
        if link is not self._front:
            return
        self._front, self._told = None, False
        if self._open and self._engines is not None:
            _log().warning("the link to the front is lost; its %d open requests are aborted", len(self._open))
            self._engines.send(Abort(list(self._open)))
        self._wait_for_front()

    def _refusal(self, hello: Hello) -> Failed | None:
        if hello.version != __version__:
            self.refused["version"] += 1
            words = f"the host has corepipe {__version__}, the front {shown(hello.version)}: install the same"
            return Failed(words, user_error=True)
        if hello.lease <= self._lease:
            self.refused["lease"] += 1
            return Failed(f"lease {hello.lease} is over: there is a later one", user_error=False)
        try:
            other = self._config is not None and _config(hello) != self._config
        except UserError as error:
            return Failed(error.message, user_error=True)
        return Failed("the host serves another configuration", user_error=True) if other else None

    def _submit(self, submit: Submit, engines: Succession) -> None:
        if submit.id in self._open:
            self.refused["repeated"] += 1
            return
        self._open.add(submit.id)
        engines.send(submit)

    async def _load(self, engines: Succession) -> None:
        try:
            self.replaced(await engines.start(self._say))
        except (UserError, EngineError) as error:
            self.gave_up(error)

    def _say(self, message: object) -> None:
        if self._front is not None:
            self._front.send(message)

    def _tell_loaded(self) -> None:
        """Tells the front that it may begin, once no request of an earlier lease is open."""
        if self._ready is None or self._open or self._told or self._front is None:
            return
        assert self._engines is not None
        self._front.send(Loaded(self._engines.epoch, self._ready, b"".join(self._prefixes)))
        self._told = True

    def _wait_for_front(self) -> None:
        loop = asyncio.get_running_loop()
        self._orphaned = loop.call_later(ORPHAN_SECONDS, self.ended.set)


class _IncomingFront:
    """An accepted connection whose first message must be a Hello."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known = False
        self.link: FleetLink[FromFront] = FleetLink(FromFront, self._take, self._lost, self._beat)

    def _beat(self) -> Beat:
        return Beat(dict(self._host.refused))

    def _take(self, messages: Sequence[FromFront]) -> None:
        for message in messages:
            if isinstance(message, Hello) and not self._known:
                self._known = self._host.obey(self.link, message)
            elif isinstance(message, EngineOrder):
                self._host.order(self.link, message)

    def _lost(self, reason: str) -> None:
        if reason in ("frame", "tampered"):
            self._host.refused[reason] += 1
        self._host.gone(self.link)


def _config(hello: Hello) -> EngineConfig:
    """Raises UserError."""
    return validated(EngineConfig, hello.config)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
