"""Injects faults into answers, names each in a header of the answer, and counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.serving.api.http.connection import Connection
from corepipe.serving.api.http.errors import RETRY_SECONDS, ApiError, send_error
from corepipe.serving.faults import KINDS, FaultSequence, RequestFault

HEADER = b"x-corepipe-injected"
PIECES = 3
"""The piece of a stream, counted from 1, at which a fault in the middle of it happens."""

ENDINGS = frozenset({"cut-stream", "drop-connection"})
"""The kinds of faults that end the connection."""

_ABORT = "corepipe.abort"


class AbortableConnection(Connection):
    """A connection that an application can abort at once, as if the server's machine had failed."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_ABORT: {"abort": self.transport.abort}}


class InjectedFaults(Collector):
    """The number of injected faults, by kind."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts = dict.fromkeys(KINDS, 0)
        registry.register(self)

    def count(self, fault: RequestFault) -> None:
        self._counts[fault.kind] += 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "corepipe_injected_faults", "Faults injected because of --inject.", labels=("kind",)
        )
        for kind, count in self._counts.items():
            family.add_metric((kind,), count)
        yield family


class FaultMiddleware:
    """ASGI middleware inside RequestGuard: a request that is refused there gets no injected fault.

    Faults are injected into POSTs to `paths`, never into the requests of probes and Prometheus.
    """

    def __init__(
        self, app: ASGIApp, draw: FaultSequence, counts: InjectedFaults, paths: Container[str]
    ) -> None:
        self._app = app
        self._draw = draw
        self._counts = counts
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = None
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            fault = next(self._draw)
        if fault is None:
            await self._app(scope, receive, send)
            return
        self._counts.count(fault)
        if fault.kind.isdigit():
            await send_error(scope, send, _refusal(int(fault.kind)))
            return
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
        if fault.kind == "drop-connection":
            _abort(scope)
        else:
            await self._app(scope, receive, SpoiledSend(scope, send, fault))
        if fault.kind in ENDINGS:
            await _disconnected(receive)


class SpoiledSend:
    """A `send` that injects a fault into the answer.  Messages after a cut are not sent."""

    def __init__(self, scope: Scope, send: Send, fault: RequestFault) -> None:
        self._scope = scope
        self._send = send
        self._fault = fault
        self._pieces = 0
        self._last = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (HEADER, self._fault.kind.encode())]
            await self._send({**message, "headers": headers})
            return
        self._pieces += 1
        self._last = not message.get("more_body", False)
        await (self._spoil(message) if self._in_the_middle else self._send(message))

    @property
    def _in_the_middle(self) -> bool:
        return self._pieces == PIECES or (self._last and self._pieces < PIECES)

    async def _spoil(self, message: Message) -> None:
        match self._fault.kind:
            case "stall":
                await asyncio.sleep(self._fault.seconds)
                await self._send(message)
            case "garbled":
                await self._send({**message, "body": garbled(message["body"])})
            case "cut-stream":
                body = message["body"]
                await self._send({**message, "body": body[: len(body) // 2], "more_body": True})
                await asyncio.sleep(0)  # what was written goes out first
                _abort(self._scope)
            case _:
                await self._send(message)


def garbled(body: bytes) -> bytes:
    """Returns bytes as long as `body` that are not JSON; the end of an event stays in place."""
    end = b"\n\n" if body.endswith(b"\n\n") else b""
    whole = len(body) - len(end)
    kept = body[: whole // 2]
    return kept + b"#" * (whole - len(kept)) + end


def _refusal(status: int) -> ApiError:
    code = {429: "rate_limit_exceeded", 503: "service_unavailable"}.get(status, "injected")
    headers = {HEADER.decode(): str(status)}
    if status in (429, 503):
        headers["retry-after"] = str(RETRY_SECONDS)
    return ApiError(status, "This fault was injected because of --inject.", code=code, headers=headers)


def _abort(scope: Scope) -> None:
    """Aborts the connection.  Raises KeyError if it is no AbortableConnection."""
    abort: Callable[[], None] = scope["extensions"][_ABORT]["abort"]
    abort()


async def _disconnected(receive: Receive) -> None:
    """Waits for the end of the connection; else the server would report that the answer is incomplete."""
    while (await receive())["type"] != "http.disconnect":
        pass
