"""What a route is: its path, who may ask, what it takes and answers.  Nothing else knows paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from corepipe.serving.api.bodies.protocol import Neutral

JSON = "application/json"
EVENTS = "text/event-stream"
NO_MODEL: Mapping[int, str] = {404: "No such model."}

Handler = Callable[[Service, Request], Awaitable[Response]]
Answerer = ASGIApp | Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ForAllModels:
    """`make` of a route that a function answers for all models of the server together."""

    handler: Callable[[Models, Request], Awaitable[Response]]


class Audience(Enum):
    """Whom a route is for, and so on which port it is: the public one, or the admin port."""

    USERS = "users"
    """The public port alone."""
    ALL = "all"
    """All ports."""
    WATCHERS = "watchers"
    """The admin port, or the public one where there is no other."""
    OPERATORS = "operators"
    """The admin port alone."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; `{name}` in a path stands for all that is there, slashes too.

    make: what answers, given the service; of several models each has its own.  summary: what it does, in the
    OpenAPI document; docs/api.md adds `details`.  request, answer: types of the bodies, where they are JSON;
    neutral: the request's parameters without effect.  listed: the answer is a list of such.  example: a body,
    without its model.  failures: types of what fails, beside that of all routes.  statuses, others: further
    ones, and content types of a 200.

    scraped: is on the port of metrics, too.  keyless: needs no API key.  counted: is in the metrics of HTTP.
    generates: has the model answer, so that it is traced and meets faults that are injected.  of_model: has
    its tokenizer work, or tells of it.
    """

    method: str
    path: str
    summary: str
    make: Callable[[Service], Answerer] | ForAllModels
    details: str = ""
    audience: Audience = Audience.USERS
    answer: type[msgspec.Struct] | None = None
    request: type[msgspec.Struct] | None = None
    neutral: Mapping[str, Neutral] = field(default_factory=dict)
    listed: bool = False
    example: Mapping[str, Any] = field(default_factory=dict)
    statuses: Mapping[int, str] = field(default_factory=dict)
    others: Sequence[str] = ()
    failures: Sequence[type[msgspec.Struct]] = ()
    scraped: bool = False
    keyless: bool = False
    counted: bool = True
    generates: bool = False
    of_model: bool = False

    def bound(self, models: Models) -> routing.Route:
        """The route of an application.  HEAD is no method of it."""
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
        """Whether cassettes have what it is asked and answers: what a client wants of the model."""
        return self.generates or self.of_model

    def matches(self, path: str) -> bool:
        """Whether a request's path is this one; a name in it has no line break, as the framework has it."""
        before, _, rest = self.path.partition("{")
        if not rest:
            return path == before
        after = rest.partition("}")[2]
        named = path.removeprefix(before).removesuffix(after)
        whole = path == before + named + after
        return whole and bool(named) and "\n" not in named


class RoutePaths(Collection[str]):
    """The paths of some routes, as requests have them."""

    def __init__(self, routes: Iterable[Route]) -> None:
        routes = [*routes]
        self._plain = frozenset(one.path for one in routes if "{" not in one.path)
        self._named = [one for one in routes if "{" in one.path]

    def __contains__(self, path: object) -> bool:
        return path in self._plain or any(one.matches(str(path)) for one in self._named)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._plain, *(one.path for one in self._named)])

    def __len__(self) -> int:
        return len(self._plain) + len(self._named)


def plain(handler: Handler) -> Callable[[Service], Callable[[Request], Awaitable[Response]]]:
    """`make` of a route that a function answers for a model."""
    return lambda service: partial(handler, service)
