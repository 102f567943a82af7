"""Probes.  Alive: the process need not be restarted.  Ready, and /health: requests are taken."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.http_errors import RETRY_SECONDS
from corepipe.serving.api.routes.answers import Strict
from corepipe.serving.api.routes.route import Audience, Handler, Route, plain
from corepipe.serving.api.routes.service import Service


class Health(Strict):
    """`what` is being loaded and how far it is `done`, 0 to 1, while `status` is loading."""

    status: str
    what: str | UnsetType = UNSET
    done: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


async def _ready(service: Service, _: Request) -> Response:
    return _told(service, ok=service.state == "ready")


async def _alive(service: Service, _: Request) -> Response:
    return _told(service, ok=service.state != "failed")


def _told(service: Service, *, ok: bool) -> Response:
    headers = None if ok else {"retry-after": str(RETRY_SECONDS)}
    body: dict[str, Any] = {"status": service.state}
    if service.state == "loading" and service.progress is not None:
        body |= {"what": service.progress.what, "done": service.progress.done}
    return JSONResponse(body, 200 if ok else 503, headers)


def _probe(path: str, summary: str, handler: Handler, details: str) -> Route:
    return Route(
        "GET",
        path,
        summary,
        plain(handler),
        details,
        Audience.ALL,
        answer=Health,
        statuses={503: "Not now."},
        keyless=True,
        counted=False,
    )


ROUTES = (
    _probe("/health", "Whether requests are taken", _ready, "200 if they are, else 503"),
    _probe("/health/ready", "As `/health`", _ready, ""),
    _probe("/health/live", "Whether the process may go on", _alive, "503 only if it must be restarted"),
    _probe("/ping", "As `/health`", _ready, ""),
)
