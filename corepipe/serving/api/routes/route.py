"""Routes: path, audience, request and answer of each.  No other module knows paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import msgspec
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from corepipe.serving.api.answering.models import ModelRouter, Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import Body

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
    """One method of one path; `{name}` in a path matches any text, slashes included.

    make: makes the ASGI application of a service; each of several models has its own.  summary: what the
    route does, in the OpenAPI document; docs/api.md adds `details`.  request, answer: types of the bodies, if
    they are JSON.  listed: the answer is a list of that type.  example: a body without its model.  failures:
    types of errors, in place of the usual one.  others: further content types
    of a 200.

    scraped: the route is on the port of metrics, too.  keyless: it needs no API key.  counted: it is in the
    metrics of HTTP.  generates: the model answers, so that the route is traced and gets injected faults.
    of_model: it uses the model's tokenizer, or describes the model.
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
    scraped: bool = False
    keyless: bool = False
    counted: bool = True
    generates: bool = False
    of_model: bool = False

    def bound(self, models: Models) -> routing.Route:
        """Makes the application's route.  HEAD is not among its methods."""
        if isinstance(self.make, ForAllModels):
            return self._answered_by(partial(self.make.handler, models))
        made = [self._answered_by(self.make(one)) for one in models.services]
        return (
            self._answered_by(ModelRouter(models, [one.app for one in made])) if models.several else made[0]
        )

    def _answered_by(self, answerer: Answerer) -> routing.Route:
        made = routing.Route(self.path.replace("}", ":path}"), answerer, methods=[self.method])
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
        return whole and bool(named) and "\n" not in named


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
