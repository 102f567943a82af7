"""Limits on what clients send and hold: connections, heads of requests, and details that uvicorn leaves."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Protocol
from urllib.parse import unquote

import httptools
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from corepipe.serving.api.http.errors import ApiError

OTHER_FILES = 128
"""File descriptors that the process needs besides those of connections."""
MAX_REFUSED = 32
"""Connections beyond the limit that get an error; those beyond these are closed without an answer."""
RESTED_SECONDS = 5.0
"""A connection idle for so long may be closed for a new one: no request is on its way then."""


class RefusalReason(Enum):
    """The reason why the server ended a connection early."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    LATE = "late"
    PIPELINED = "pipelined"
    SLOW_READER = "slow_reader"
    CROWDED = "crowded"


class Admission(Enum):
    """The decision about a new connection."""

    TAKEN = "taken"
    REFUSED = "refused"
    """It gets an error that says why."""
    DROPPED = "dropped"


class LimitedConnection(Protocol):
    """A connection that counts against the limit."""

    def close(self) -> None:
        """Closes the connection, because a new one needs its place."""


class ConnectionLimit:
    """The open connections of a listener, at most `limit`.

    A new connection beyond the limit is refused, unless another has been idle for a while between two
    requests: then the one idle for longest is closed.  Connections with a request under way stay open.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[LimitedConnection] = set()
        self._refused: set[LimitedConnection] = set()
        self._resting: dict[LimitedConnection, float] = {}  # idle since; the longest idle first
        self.refusals: Counter[RefusalReason] = Counter(dict.fromkeys(RefusalReason, 0))

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, member: LimitedConnection) -> Admission:
        """Decides about a new connection; closes an idle one if that makes room for it."""
        if len(self._all) >= self._limit and not self._make_room():
            self.refusals[RefusalReason.CROWDED] += 1
            if len(self._refused) >= MAX_REFUSED:
                return Admission.DROPPED
            self._refused.add(member)
            return Admission.REFUSED
        self._all.add(member)
        return Admission.TAKEN

    def _make_room(self) -> bool:
        longest = next(iter(self._resting), None)
        if longest is None or time.monotonic() - self._resting[longest] < RESTED_SECONDS:
            return False
        self.leave(longest)
        longest.close()
        return True

    def mark_idle(self, member: LimitedConnection) -> None:
        """Notes that a connection is idle: its request was answered, and no other has begun."""
        if member in self._all:
            self._resting[member] = time.monotonic()

    def mark_active(self, member: LimitedConnection) -> None:
        """Notes that a connection is in use: a request begins to arrive."""
        self._resting.pop(member, None)

    def leave(self, member: LimitedConnection) -> None:
        self._all.discard(member)
        self._refused.discard(member)
        self._resting.pop(member, None)


class ConnectionMetrics(Collector):
    """`corepipe_connections`, `corepipe_connections_refused`, and the tasks of the loop that serves them."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit

    def collect(self) -> Iterator[Metric]:
        """Must be called in that event loop."""
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("corepipe_event_loop_tasks", "Tasks of the server's event loop.", tasks)
        yield GaugeMetricFamily("corepipe_connections", "Open connections.", len(self._limit))
        refused = CounterMetricFamily(
            "corepipe_connections_refused",
            "Connections that the server ended for a fault of the client.",
            labels=("reason",),
        )
        for reason, count in self._limit.refusals.items():
            refused.add_metric((reason.value,), count)
        yield refused


def make_room(wanted: int) -> int:
    """Raises the process's file limit as far as allowed; returns how many of `wanted` connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft < needed and (hard == resource.RLIM_INFINITY or soft < hard):
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - OTHER_FILES))


def too_few_files(wanted: int, room: int) -> str | None:
    """Returns a warning if `make_room` found room for fewer connections than wanted."""
    if room >= wanted:
        return None
    return (
        f"--max-connections {wanted}: only {room} are accepted, since this process may open too few files; "
        f"raise its limit (ulimit -Hn) to {wanted + OTHER_FILES}"
    )


MAX_HEAD = 16 * 1024
"""Bytes of a request line and its headers."""
MAX_HEADERS = 100
MAX_URL = 8 * 1024

Headers = list[tuple[bytes, bytes]]
"""Pairs of lower-case names and values, in the order in which they came."""


def check_head(method: bytes, version: str, headers: Headers) -> None:
    """Raises ApiError for a head that is not HTTP/1.1 or 1.0, or requests what is not supported."""
    if version not in ("1.0", "1.1"):
        raise malformed("Use HTTP/1.1.")
    if method == b"CONNECT":
        allow = {"allow": "GET, POST"}
        raise ApiError(405, "This server is not a proxy.", code="method_not_allowed", headers=allow)
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            raise malformed("The only supported Transfer-Encoding is chunked.")
        elif name == b"expect" and value.lower() != b"100-continue":
            raise ApiError(417, "The only supported Expect is 100-continue.", code="expectation_failed")
    if hosts != 1 and (hosts or version == "1.1"):
        raise malformed("Send one Host header.")


def origin_form(url: bytes, headers: Headers) -> bytes:
    """Returns the target without its host, which replaces `Host` in `headers` (RFC 9112, 3.2.2).

    Raises ApiError where the target names a user, or no host of HTTP.
    """
    if url.startswith((b"/", b"*")):
        return url
    parsed = httptools.parse_url(url)
    host = parsed.host or b""
    if (parsed.schema or b"").lower() not in (b"http", b"https") or not host or parsed.userinfo:
        raise malformed("The request's target is not valid.")
    authority = b"[%b]" % host if b":" in host else host
    if parsed.port:
        authority += b":%d" % parsed.port
    headers[:] = [(b"host", authority), *(one for one in headers if one[0] != b"host")]
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")


def path_of(raw: bytes) -> str:
    """Returns a path as routes match it.  An encoded slash is part of a segment and stays `%2F`."""
    path = raw.decode("ascii")
    if "%" not in path:
        return path
    return "%2F".join(unquote(part) for part in path.replace("%2f", "%2F").split("%2F"))


def malformed(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_http")


def head_too_large() -> ApiError:
    message = f"A head has at most {MAX_HEAD} bytes and {MAX_HEADERS} headers."
    return ApiError(431, message, code="headers_too_large")


_OFFER = frozenset({b"upgrade", b"http2-settings"})


def without_offer(url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the head of the same POST without its Upgrade; header names are in lower case."""
    lines = [b"POST %b HTTP/%b" % (url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
            lines.append(b"connection: " + b",".join(kept).strip())
        elif name not in _OFFER:
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Returns `app` for an HTTP/1.0 request, whose `cycle` would send chunks where there is no length."""

    async def answered(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        endless = False

        async def sent(event: ASGISendEvent) -> None:
            nonlocal endless
            if event["type"] == "http.response.start":
                endless = all(name != b"content-length" for name, _ in event.get("headers", ()))
                cycle.chunked_encoding = False if endless else None
            elif endless and event["type"] == "http.response.body":
                cycle.expected_content_length = len(event.get("body", b""))  # so that it counts as sent
            await send(event)

        await app(scope, receive, sent)

    return answered
