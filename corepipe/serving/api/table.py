"""All routes of the server; no other module lists them."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.serving.api.batches import batches, files
from corepipe.serving.api.messages import endpoint as messages
from corepipe.serving.api.responses import endpoint as responses
from corepipe.serving.api.responses import retrieval
from corepipe.serving.api.routes import (
    adapters,
    admin,
    chat,
    classify,
    cohere,
    completions,
    embeddings,
    info,
    invocations,
    lifecycle,
    openapi,
    pooling,
    probes,
    render,
    rerank,
    score,
    stored_chats,
    tei,
    tokens,
)
from corepipe.serving.api.routes.kserve import inference
from corepipe.serving.api.routes.kserve import metadata as inference_metadata
from corepipe.serving.api.routes.kserve import repository as inference_repository
from corepipe.serving.api.routes.route import Audience, Route, RoutePaths

ROUTES: Sequence[Route] = (
    completions.ROUTE,
    chat.ROUTE,
    *messages.ROUTES,
    *files.ROUTES,
    *batches.ROUTES,
    *responses.ROUTES,
    *retrieval.ROUTES,
    *render.ROUTES,
    *stored_chats.ROUTES,
    invocations.ROUTE,
    *embeddings.ROUTES,
    pooling.ROUTE,
    *classify.ROUTES,
    *score.ROUTES,
    *tei.ROUTES,
    *rerank.ROUTES,
    *cohere.ROUTES,
    *inference_metadata.ROUTES,
    inference.ROUTE,
    *inference_repository.ROUTES,
    *info.ROUTES,
    *tokens.ROUTES,
    *probes.ROUTES,
    *adapters.ROUTES,
    *admin.ROUTES,
    *lifecycle.ROUTES,
    openapi.ROUTE,
    info.ROOT,
)

KEYLESS_PATHS = frozenset(route.path for route in ROUTES if route.keyless)
"""Paths that need no API key: those of load balancers and probes, and none that shows data of users."""
GENERATING_PATHS = RoutePaths(route for route in ROUTES if route.generates)
"""Paths that are traced and get injected faults."""
PATHS_OF_LINES = tuple(route.path for route in ROUTES if route.generates and "{" not in route.path)
"""Paths that lines of batches may go to."""
_RECORDED = tuple(route for route in ROUTES if route.recorded)


def is_recorded(method: str, path: str) -> bool:
    """Returns whether cassettes record requests of this method and path."""
    return any(route.method == method and route.matches(path) for route in _RECORDED)


INSTEAD = {
    "/api/chat": chat.ROUTE.path,
    **dict.fromkeys(("/api/generate", "/completion", "/generate"), completions.ROUTE.path),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), embeddings.ROUTE.path),
    "/lora-adapters": adapters.ROUTES[0].path,
    **dict.fromkeys(("/api/tags", "/api/ps", "/api/show", "/props"), info.ROUTES[0].path),
}
"""Paths of other servers that this server does not have, and the paths to use instead."""


def public_routes(*, admin_port: bool) -> list[Route]:
    """Returns the routes of the public port, of a server with or without an admin port."""
    hidden = {Audience.OPERATORS, Audience.WATCHERS} if admin_port else {Audience.OPERATORS}
    return [route for route in ROUTES if route.audience not in hidden]


def admin_routes() -> list[Route]:
    """Returns the routes of the admin port."""
    return [route for route in ROUTES if route.audience is not Audience.USERS]


def metrics_routes() -> list[Route]:
    """Returns the routes of the port of metrics, which needs no key."""
    probes = [one for one in ROUTES if one.audience is Audience.ALL and one.keyless]
    return [*probes, *(one for one in ROUTES if one.scraped)]
