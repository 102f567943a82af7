"""Probes.  Alive: the process need not be restarted.  Ready, and /health: requests are accepted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.http.errors import RETRY_SECONDS
from corepipe.serving.api.routes.route import Audience, ForAllModels, Route, for_everybody


class Health(Strict):
    """The state of the server; while `status` is loading, `what` is being loaded, its share `done`, 0 to 1.

    `models`: the state of each model, if there are several; `status` is degraded if some have failed and the
    others serve.
    """

    status: str
    what: str | UnsetType = UNSET
    done: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    models: dict[str, str] | UnsetType = UNSET


async def _ready(models: Models, _: Request) -> Response:
    return _health(models, ok=models.accepts)


async def _alive(models: Models, _: Request) -> Response:
    return _health(models, ok=models.state != "failed")


def _health(models: Models, *, ok: bool) -> Response:
    headers = None if ok else {"retry-after": str(RETRY_SECONDS)}
    body: dict[str, Any] = {"status": models.state}
    loading = next((one.progress for one in models.services if one.state == "loading"), None)
    if models.state == "loading" and loading is not None:
        body |= {"what": loading.what, "done": loading.done}
    if models.several:
        body["models"] = {one.names[0]: one.state for one in models.services}
    return JSONResponse(body, 200 if ok else 503, headers)


def _probe(
    path: str, summary: str, handler: Callable[[Models, Request], Awaitable[Response]], details: str
) -> Route:
    return for_everybody(path, summary, ForAllModels(handler), details, Audience.ALL, answer=Health)


ROUTES = (
    _probe("/health", "Whether requests are accepted", _ready, "200 if they are, else 503"),
    _probe("/health/ready", "As `/health`", _ready, ""),
    _probe("/health/live", "Whether the process is alive", _alive, "503 only if it must be restarted"),
    _probe("/ping", "As `/health`", _ready, ""),
)
