"""Routes with facts for users of the server: its models and its version."""

from __future__ import annotations

from html import escape
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.errors import origin_of
from corepipe.serving.api.routes import openapi
from corepipe.serving.api.routes.missing import BASE
from corepipe.serving.api.routes.route import ForAllModels, Route, for_everybody, plain


class ModelCard(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    permission: list[Any]
    tool_call_parser: str | None
    reasoning_parser: str | None
    task: str


class ModelList(Strict):
    object: Literal["list"]
    data: list[ModelCard]


class Version(Strict):
    version: str


async def _models(models: Models, _: Request) -> Response:
    cards = [_card(service, name) for service in models.services for name in service.names]
    return JSONResponse({"object": "list", "data": cards})


async def _model(service: Service, request: Request) -> Response:
    name = request.path_params["model"].replace("%2F", "/")  # clients encode the slashes of a name
    if not name:
        raise HTTPException(404)
    return JSONResponse(_card(service, service.require_model(name)))


def _card(service: Service, name: str) -> dict[str, Any]:
    context, dialect = service.ready.max_model_len if service.ready else 0, service.dialect
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "corepipe",
        "root": service.engine.model,
        "parent": None,
        "max_model_len": context or None,
        "permission": [],
        "tool_call_parser": dialect.calls.name if dialect.calls else None,
        "reasoning_parser": dialect.reasoning.name if dialect.reasoning else None,
        "task": service.task.task.value,
    }


async def _version(models: Models, _: Request) -> Response:
    return JSONResponse({"version": models.first.version})


ROUTES = (
    Route("GET", "/v1/models", "The served names", ForAllModels(_models), answer=ModelList, of_model=True),
    Route(
        "GET", "/v1/models/{model}", "One of the served names", plain(_model), answer=ModelCard, of_model=True
    ),
    for_everybody("/version", "The version", ForAllModels(_version), answer=Version),
)


_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>corepipe</title>
<h1>corepipe {version}</h1>
<p>A server of the OpenAI API. The base URL of clients is <code>{base}</code>.
<p><a href="/v1/models">Models</a>, <a href="/health">health</a>, <a href="/metrics">metrics</a>,
<a href="/openapi.json">routes</a>. If the server has API keys, all but the health need one.
"""


class Root(Strict):
    """The answer to GET /; `base_url`: the base URL for OpenAI's clients."""

    name: str
    version: str
    base_url: str
    routes: str


async def _root(models: Models, request: Request) -> Response:
    version, base = models.first.version, origin_of(request) + BASE
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_PAGE.format(version=escape(version), base=escape(base)))
    return JSONResponse(
        {"name": "corepipe", "version": version, "base_url": base, "routes": openapi.ROUTE.path}
    )


ROOT = for_everybody(
    "/",
    "Where the API is",
    ForAllModels(_root),
    "the base URL of clients, as a page for browsers, else as JSON",
    answer=Root,
    others=("text/html",),
)
