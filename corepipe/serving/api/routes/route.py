"""Routes: path, audience, request and answer of each.  No other module knows paths."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.serving.api.answering.models import ModelRouter, Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import Body
from corepipe.serving.api.http.errors import internal, send_error
from corepipe.serving.telemetry.observer import Histogram

JSON = "application/json"
EVENTS = "text/event-stream"

RouteHandler = Callable[[Service, Request], Awaitable[Response]]
Answerer = ASGIApp | Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ForAllModels:
    """The `make` of a route for which a function answers for all models of the server together."""

    handler: Callable[[Models, Request], Awaitable[Response]]


class Audience(Enum):
    """The users that a route is for, which decides its port: the public one or the admin port."""

    USERS = "users"
    """The public port alone."""
    ALL = "all"
    """All ports."""
    WATCHERS = "watchers"
    """The admin port, or the public one if there is no admin port."""
    OPERATORS = "operators"
    """The admin port alone."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; `{model}` in a path matches any text, slashes included, any other name one
    segment.

    make: makes the ASGI application of a service; each of several models has its own.  summary: what the
    route does, in the OpenAPI document; docs/api.md adds `details`.  request, answer: types of the bodies, if
    they are JSON.  listed: the answer is a list of that type.  example: a body without its model.  failures:
    types of errors, in place of the usual one.  others: further content types
    of a 200.  statuses: further statuses of errors, and what they mean.

    scraped: the route is on the port of metrics, too.  keyless: it needs no API key.  counted: it is in the
    metrics of HTTP.  generates: the model answers, so that the route is traced and gets injected faults.
    of_model: it uses the model's tokenizer, or describes the model.  uploads: its body is a form with a file.
    """

    method: str
    path: str
    summary: str
    make: Callable[[Service], Answerer] | ForAllModels
    details: str = ""
    audience: Audience = Audience.USERS
    answer: type[msgspec.Struct] | None = None
    request: type[Body] | None = None
    listed: bool = False
    example: Mapping[str, Any] = field(default_factory=dict)
    others: Sequence[str] = ()
    failures: Sequence[type[msgspec.Struct]] = ()
    statuses: Mapping[int, str] = field(default_factory=dict)
    scraped: bool = False
    keyless: bool = False
    counted: bool = True
    generates: bool = False
    of_model: bool = False
    uploads: bool = False

    def bound(self, models: Models) -> routing.Route:
        """Makes the application's route.  HEAD is not among its methods."""
        if isinstance(self.make, ForAllModels):
            return self._answered_by(partial(self.make.handler, models))
        if models.several or models.pool is not None:
            return self._answered_by(ModelRouter(models, self._app))
        return self._answered_by(self.make(models.first))

    def _app(self, service: Service) -> ASGIApp:
        """Makes the application of a model among others."""
        assert not isinstance(self.make, ForAllModels)
        return self._answered_by(self.make(service)).app

    def _answered_by(self, answerer: Answerer) -> routing.Route:
        made = routing.Route(self.path.replace("{model}", "{model:path}"), answerer, methods=[self.method])
        made.methods = {self.method}
        return made

    @property
    def recorded(self) -> bool:
        """True if cassettes record the route, because clients use the model by it."""
        return self.generates or self.of_model

    def matches(self, path: str) -> bool:
        """Returns whether a request's path matches; as in the framework, a name has no line break."""
        before, _, rest = self.path.partition("{")
        if not rest:
            return path == before
        after = rest.partition("}")[2]
        named = path.removeprefix(before).removesuffix(after)
        whole = path == before + named + after
        inside = "/" not in named or rest.startswith("model}")
        return whole and inside and bool(named) and "\n" not in named


generating = partial(Route, "POST", generates=True)
"""Makes a route by which the model answers."""
of_model = partial(Route, "POST", of_model=True)
"""Makes a route that takes a body for the model, but gets no answer of it."""
for_everybody = partial(Route, "GET", keyless=True, counted=False)
"""Makes a route of facts that are no secret."""


class RoutePaths(Container[str]):
    """The set of paths that some routes match."""

    def __init__(self, routes: Iterable[Route]) -> None:
        routes = [*routes]
        self._plain = frozenset(one.path for one in routes if "{" not in one.path)
        self._named = [one for one in routes if "{" in one.path]

    def __contains__(self, path: object) -> bool:
        return path in self._plain or any(one.matches(str(path)) for one in self._named)


def best_match(routes: Iterable[Route], path: str) -> Route | None:
    """Returns the route that matches a path most precisely: a model's name may end like another route."""
    return max((one for one in routes if one.matches(path)), key=lambda one: len(one.path), default=None)


def plain(handler: RouteHandler) -> Callable[[Service], Callable[[Request], Awaitable[Response]]]:
    """Returns the `make` of a route for which a function answers for one model."""
    return lambda service: partial(handler, service)


_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)
_SECONDS_BY_HANDLER = (0.1, 0.5, 1)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ANTHROPIC = "/v1/messages"
"""The path of Anthropic's API."""
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

    Anthropic's clients read it as `request-id`.
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
                if scope["path"].startswith(ANTHROPIC):
                    message["headers"].append((b"request-id", request_id))
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
