"""One HTTP/1.1 connection with limits that uvicorn lacks: heads, times, pipelines and slow readers."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from corepipe.serving.api.http.errors import ApiError, on_the_wire
from corepipe.serving.api.http.limits import (
    MAX_HEAD,
    MAX_HEADERS,
    MAX_URL,
    Admission,
    ConnectionLimit,
    RefusalReason,
    check_head,
    head_too_large,
    malformed,
    origin_form,
    path_of,
    until_close,
    without_offer,
)

MAX_PIPELINED = 16
"""Pipelined requests that may wait behind the one that is being answered."""
HEAD_SECONDS = 8.0
"""The time limit from the first byte of a connection or a request to the end of the head."""
IDLE_SECONDS = 75.0
"""The time limit between two requests; longer than that of load balancers, so that they close first."""
BODY_GRACE_SECONDS = 10.0
"""After this time the body must have arrived at `BODY_RATE` on average."""
BODY_RATE = 1024
"""Bytes a second, the minimum."""
BODY_SECONDS, UPLOAD_RATE = 60.0, 64 * 1024
"""After this time the body must have arrived at so many bytes a second; only files take so long."""
WRITE_SECONDS = 30.0
"""The time limit in which a slow client must read what waits for it."""
LINGER_SECONDS = 2.0
"""Time for a client that still sends to read the error: an immediate close would reset the connection."""
MAX_DISCARDED = 1024 * 1024
"""Bytes that are read and discarded in that time."""

_BY_STATUS = {
    408: RefusalReason.LATE,
    414: RefusalReason.TOO_LARGE,
    429: RefusalReason.PIPELINED,
    431: RefusalReason.TOO_LARGE,
}


class TransportWrapper:
    """The transport as uvicorn's protocol sees it; `close` is ours, so that the client can read an error."""

    __slots__ = ("abort", "close", "get_extra_info", "is_closing", "pause_reading", "resume_reading", "write")

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self.abort = transport.abort
        self.close = connection.close
        self.get_extra_info = transport.get_extra_info
        self.is_closing = connection.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.write = transport.write

    def let_go(self, transport: asyncio.Transport) -> None:
        """Drops the references to the connection, so that it is freed without the garbage collector."""
        self.close = transport.close
        self.is_closing = transport.is_closing


class _Next(Enum):
    """The part of a request that comes next from the client."""

    REQUEST = 0
    HEAD = 1
    BODY = 2


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits on everything that a client decides.

    A request starts when all data received with it have been parsed without an error; data after an error are
    never parsed.  An error waits for the answers before it, has OpenAI's form, and ends the connection.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limit: ConnectionLimit,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._limit = limit
        self._socket: asyncio.Transport
        self._next = _Next.REQUEST
        self._messages = 0
        self._keep_alive = False
        self._plain_head = b""
        self._awaited = (0, _Next.REQUEST)
        self._head_bytes = 0
        self._held_back = 0
        self._body_seen = 0
        self._body_bytes = 0
        self._body_since = 0.0
        self._discarded = 0
        self._answering: RequestResponseCycle | None = None
        self._starting: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._refusal: ApiError | None = None
        self._last_answer: bytes | None = None
        self._closing = False
        self._timer: TimerHandle | None = None
        self._write_timer: TimerHandle | None = None

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast("asyncio.Transport", transport)
        self._wire = TransportWrapper(self._socket, self)
        super().connection_made(cast("asyncio.Transport", self._wire))
        entry = self._limit.enter(self)
        if entry is Admission.TAKEN:
            self._after(HEAD_SECONDS, self._head_is_late)
        elif entry is Admission.DROPPED:
            self._socket.abort()
        else:
            self._next = _Next.HEAD  # a request is about to arrive, and gets an error as its answer
            message = "Too many connections."
            headers = {"retry-after": "1"}
            self._close_after(
                on_the_wire(ApiError(503, message, code="service_unavailable", headers=headers))
            )

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.leave(self)
        self._after(None)
        self._end_write_timer()
        self._wire.let_go(self._socket)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._closing or self._last_answer is not None:
            self._discard(len(data))
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._plain_head:
                self._read_again(data[upgrade.args[0] :])
                return
            self._last_answer = b""  # answered in HTTP/1.1; what follows is in another protocol
            self.cycle.keep_alive = False
        except httptools.HttpParserError:
            self._reject(self._refusal or malformed("This is not valid HTTP/1.1."))
        self._start()
        if not self._closing and self._last_answer is None:
            self._await_next(len(data))

    def _read_again(self, rest: bytes) -> None:
        """Parses a request again without its offer of another protocol; `rest` came after its head."""
        head, self._plain_head = self._plain_head, b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.data_received(head + rest)

    def eof_received(self) -> None:
        """Treats a half-closed connection as closed: the transport closes."""

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._drop_slow_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_write_timer()

    def close(self) -> None:
        """Closes the connection when all is written; a client that still sends gets time to read it."""
        if self._closing:
            return
        self._closing = True
        if self._next is _Next.REQUEST or not self._socket.can_write_eof():
            self._socket.close()
            self._after(WRITE_SECONDS, self._socket.abort)
        else:
            self._socket.write_eof()
            self.flow.resume_reading()
            self._after(LINGER_SECONDS, self._socket.abort)

    def shutdown(self) -> None:
        self._keep_alive = False
        super().shutdown()

    def is_closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    # Called by the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._limit.mark_active(self)
        self._next = _Next.HEAD
        self._messages += 1
        self._head_bytes = self._held_back = self._body_bytes = self._body_seen = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL:
            message = f"The request's target is longer than {MAX_URL} bytes."
            self._refuse(ApiError(414, message, code="uri_too_long"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._next is not _Next.HEAD:
            return  # a trailer, which must not become a header
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD or len(self.headers) > MAX_HEADERS:
            self._refuse(head_too_large())

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade() and self.parser.get_method() == b"POST":
            self._plain_head = without_offer(self.url, self.parser.get_http_version(), self.headers)
            return  # the parser skips the body of such a request
        super().on_headers_complete()
        self.scope["path"] = path_of(self.scope["raw_path"])
        self._keep_alive = self.cycle.keep_alive
        self.cycle.keep_alive = False  # an answer before the end of the body ends the connection
        self._next = _Next.BODY
        self._body_since = self.loop.time()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._plain_head:
            return
        super().on_message_complete()
        if not self.cycle.response_started:  # it has already announced that the connection ends
            self.cycle.keep_alive = self._keep_alive
        self._next = _Next.REQUEST

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        try:
            check_head(self.parser.get_method(), version, self.headers)
            self.url = origin_form(self.url, self.headers)
        except ApiError as error:
            self._refuse(error)
        if version == "1.0":
            self.expect_100_continue = False  # HTTP/1.0 does not have it
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refuse(
                ApiError(429, "Too many requests before the first answer.", code="rate_limit_exceeded")
            )

    # Requests and answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Postpones the start that the parser asks for: data after this request may still be malformed."""
        self._starting = (cycle, app)

    def _start(self) -> None:
        if self._starting is not None:
            cycle, app = self._starting
            self._answering, self._starting = cycle, None
            super()._start_asgi_task(cycle, until_close(cycle, app) if _is_http10(cycle) else app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._answering = None
        if self.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._starting = self.pipeline.pop()
            self._start()
        elif self._last_answer is not None:
            self._close_after(self._last_answer)
        elif self._next is _Next.BODY:  # the rest of the body is not needed
            self.close()
        elif self._next is _Next.REQUEST:
            self._limit.mark_idle(self)
            self._after(IDLE_SECONDS, self.close)

    def _refuse(self, error: ApiError) -> NoReturn:
        """Stops the parser with an error."""
        self._refusal = error
        raise error

    def _reject(self, error: ApiError) -> None:
        """Answers a malformed request with an error, after the answers to those before it."""
        self._limit.refusals[_BY_STATUS.get(error.status, RefusalReason.MALFORMED)] += 1
        if self._next is _Next.BODY and self._forget(self.cycle):
            self.close()
        elif self._answering is not None or self._starting is not None or self.pipeline:
            self._last_answer = on_the_wire(error)
        else:
            self._close_after(on_the_wire(error))

    def _forget(self, cycle: RequestResponseCycle) -> bool:
        """Removes the malformed request; returns whether its answer has begun already."""
        if self._starting is not None and self._starting[0] is cycle:
            self._starting = None
        elif self._answering is cycle:
            self._answering = None
            cycle.disconnected = True
            cycle.message_event.set()
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
        return cycle.response_started

    def _close_after(self, last: bytes) -> None:
        if last:
            self.transport.write(last)
        self.close()

    # Time

    def _await_next(self, fed: int) -> None:
        """Starts the timer of the next part of a request, if the part began within the last `fed` bytes."""
        awaits = (self._messages, self._next)
        if awaits != self._awaited:
            self._awaited = awaits
            self._set_time()
        elif self._body_bytes != self._body_seen:
            self._body_seen, self._held_back = self._body_bytes, 0
        else:
            self._held_back += fed  # the parser holds back a header or a trailer until it is complete
            if self._held_back > MAX_HEAD:
                self._reject(head_too_large())

    def _set_time(self) -> None:
        if self._next is _Next.REQUEST:
            self._after(None)
        elif self._next is _Next.BODY:
            self._after(BODY_GRACE_SECONDS, self._check_body)
        elif self._messages > 1:  # the timer of the first head runs since the connection began
            self._after(HEAD_SECONDS, self._head_is_late)

    def _after(self, seconds: float | None, call: Callable[[], None] | None = None) -> None:
        """Sets the only timer for the client's next action; None: no action is expected."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or call is None else self.loop.call_later(seconds, call)

    def _head_is_late(self) -> None:
        if self.flow.read_paused:  # the server itself paused the reading
            self._after(HEAD_SECONDS, self._head_is_late)
        elif self._messages == 0:
            self._limit.refusals[RefusalReason.LATE] += 1
            self.close()
        else:
            self._reject(_late("The head did not come in time."))

    def _check_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            self._body_since = now
        taken = now - self._body_since
        if self._body_bytes < (BODY_RATE if taken < BODY_SECONDS else UPLOAD_RATE) * taken:
            self._reject(_late("The body did not come in time."))
        else:
            self._after(BODY_GRACE_SECONDS / 2, self._check_body)

    def _drop_slow_reader(self) -> None:
        self._limit.refusals[RefusalReason.SLOW_READER] += 1
        self._socket.abort()

    def _end_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _discard(self, count: int) -> None:
        self._discarded += count
        if self._discarded > MAX_DISCARDED:
            self._socket.abort()


def _is_http10(cycle: RequestResponseCycle) -> bool:
    return cycle.scope["http_version"] == "1.0"


def _late(message: str) -> ApiError:
    return ApiError(408, message, code="request_timeout")
