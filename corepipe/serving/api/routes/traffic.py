"""Request ids and the metrics of HTTP, in the outermost middleware."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from time import perf_counter

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.serving.api.http.errors import internal, send_error
from corepipe.serving.api.routes.route import Route, best_match
from corepipe.serving.telemetry.observer import Histogram

_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)
_SECONDS_BY_HANDLER = (0.1, 0.5, 1)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class HttpMetrics(Collector):
    """Metrics `http_*` by route, method and class of status; labels come from fixed sets, not clients."""

    def __init__(self, registry: CollectorRegistry, routes: Iterable[Route]) -> None:
        self._routes = {route.path: route for route in routes}
        self._requests: dict[tuple[str, str, str], int] = {}
        self._sizes: dict[str, list[int]] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._all_durations = Histogram(_SECONDS)
        registry.register(self)

    def observe(self, method: str, path: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Counts one answer, sizes of bodies in bytes; status 0 (the client left before) is not counted."""
        route = self._routes.get(path) or best_match(self._routes.values(), path)
        if not status or (route is not None and not route.counted):
            return
        handler = "none" if route is None else route.path
        method = method if method in _METHODS else "other"
        key = (handler, f"{status // 100}xx", method)
        self._requests[key] = self._requests.get(key, 0) + 1
        sizes = self._sizes.setdefault(handler, [0, 0, 0])
        for at, value in enumerate((1, received, sent)):
            sizes[at] += value
        self._durations.setdefault((handler, method), Histogram(_SECONDS_BY_HANDLER)).observe(seconds)
        self._all_durations.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "http_requests", "Answered requests.", labels=("handler", "status", "method")
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        for at, what in ((1, "request"), (2, "response")):
            sizes = SummaryMetricFamily(
                f"http_{what}_size_bytes", f"Bytes of {what} bodies.", labels=("handler",)
            )
            for handler, totals in self._sizes.items():
                sizes.add_metric((handler,), totals[0], totals[at])
            yield sizes
        durations = HistogramMetricFamily(
            "http_request_duration_seconds",
            "Seconds from the request to the end of its answer.",
            labels=("handler", "method"),
        )
        for labels_of, histogram in self._durations.items():
            histogram.add_to(durations, labels_of)
        yield durations
        fine = HistogramMetricFamily(
            "http_request_duration_highr_seconds",
            "Seconds from the request to the end of its answer, in fine buckets.",
            labels=(),
        )
        self._all_durations.add_to(fine, ())
        yield fine


class TrafficMiddleware:
    """ASGI middleware: adds `x-request-id` to every answer (the client's own, if it is plain) and counts it.

    An unexpected exception becomes a 500 here, so that it has the header, too; it is then raised for the log.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, sent, received = perf_counter(), 0, 0, 0
        request_id = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(16).encode()

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counting_send(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counting_receive, counting_send)
        except Exception:
            if not status:
                await send_error(scope, counting_send, internal())
            raise
        finally:
            took = perf_counter() - began
            self._metrics.observe(scope["method"], scope["path"], status, received, sent, took)
