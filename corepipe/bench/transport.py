"""HTTP/1.1 for a load generator: keep-alive connections, one answer at a time each, bytes as they come.

The time of received bytes is taken once, as soon as the event loop hands them over, and no task is woken
until the answer ends.  docs/decisions/2026-11-21-bench-transport.md has the cost of libraries instead.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import httptools

from corepipe.errors import why

INFORMATIONAL = 200
"""Status below which an answer is informational and precedes the final one."""


class TransportError(Exception):
    """Raised where no whole answer came: `kind` is for counting, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Reader(Protocol):
    """Receives an answer.  `enough`: the rest is not needed, and the connection is closed."""

    enough: bool

    def start(self, status: int) -> None: ...

    def read(self, data: bytes, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server; tls: None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class _KeepAliveConnection(asyncio.Protocol):
    """One connection.  `reusable`: between two answers; `received`: whether any byte of this answer came."""

    def __init__(self) -> None:
        self.reusable = False
        self.received = False
        self._transport: asyncio.Transport | None = None
        self._reader: Reader | None = None
        self._ended: asyncio.Future[None] | None = None
        self._now = 0.0
        self._begun = False
        self._framed = False

    async def ask(self, request: bytes, reader: Reader) -> None:
        """Sends a request and passes the answer to `reader` until its end.  Raises TransportError."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self.reusable, self.received, self._reader = False, False, reader
        self._begun = self._framed = False
        self._ended = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            raise TransportError("disconnected", "the server closed the connection")
        self._transport.write(request)
        try:
            await self._ended
        finally:
            self._reader = None
            if not self.reusable:
                self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connected = self._transport.get_extra_info("socket")
        if connected is not None and connected.family in {socket.AF_INET, socket.AF_INET6}:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._now, self.received = perf_counter(), True
        if self._reader is None:  # no request is open: the bytes would be read as the next answer
            self._end(TransportError("protocol", "the server sent bytes without a request"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(TransportError("protocol", f"not HTTP: {error}"))
        if self._reader is not None and self._reader.enough:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if exc is None and self._begun and not self._framed:  # the end of an answer without a length
            self._end(None)
            return
        said = f" ({exc})" if exc else ""
        self._end(TransportError("disconnected", f"the server closed the connection{said}"))

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002
        self._framed = self._framed or name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._reader is None:  # a second answer to the same request
            self.reusable = False
        elif status >= INFORMATIONAL:
            self._begun = True
            self._reader.start(status)

    def on_body(self, body: bytes) -> None:
        if self._reader is not None:
            self._reader.read(body, self._now)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= INFORMATIONAL:
            self.reusable = self._reader is not None and self._parser.should_keep_alive()
            self._reader = None
            self._end(None)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def _end(self, error: TransportError | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


class ConnectionPool:
    """The connections to one server, as many as there are concurrent requests."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_KeepAliveConnection] = []

    async def exchange(self, request: bytes, reader: Reader) -> None:
        """Sends a request and passes the answer to `reader` until its end.

        Where the server has closed an idle connection just as it was used again, the request is sent once
        more.  Raises TransportError.
        """
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._connect()
            try:
                await connection.ask(request, reader)
            except TransportError:
                if reused and not connection.received:
                    continue
                raise
            if connection.reusable:
                self._idle.append(connection)
            return

    def close(self) -> None:
        """Closes idle connections; the tasks that wait for answers close theirs."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> _KeepAliveConnection:
        address = self._address
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _KeepAliveConnection, address.host, address.port, ssl=address.tls
            )
        except ssl.SSLError as error:
            raise TransportError("tls", str(error)) from error
        except OSError as error:
            raise TransportError("connect", why(error)) from error
        return connection
