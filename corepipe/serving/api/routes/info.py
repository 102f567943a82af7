"""Routes with facts for users of the server: its models and its version."""

from __future__ import annotations

from html import escape
from typing import Any, Literal

from msgspec import UNSET, UnsetType
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from corepipe.models.directory import FoundModel
from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.errors import origin_of
from corepipe.serving.api.routes import anthropic_models, openapi
from corepipe.serving.api.routes.missing import BASE
from corepipe.serving.api.routes.route import ForAllModels, Route, for_everybody


class ModelStatus(Strict):
    """The state of a model that may leave or sleep: unloaded, loading, loaded, unloading or sleeping.

    `failed`, `error`: the last load failed; the next request tries again.
    """

    value: str
    failed: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET


class ModelCard(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    permission: list[Any]
    tool_call_parser: str | None
    reasoning_parser: str | None
    task: str
    status: ModelStatus | UnsetType = UNSET


class ModelList(Strict):
    object: Literal["list"]
    data: list[ModelCard]


class Version(Strict):
    version: str


async def _models(models: Models, request: Request) -> Response:
    described: list[tuple[str, Service | FoundModel]]
    described = [(name, one) for one in models.fixed for name in one.all_names]
    if models.pool is not None and models.pool.on_demand is not None:
        there = models.pool.on_demand.resident
        found = await models.pool.on_demand.look()
        others = [name for name in found if name not in models.names]
        described += [(name, there.get(name) or found[name]) for name in others]
    cards = [_card(models, name, one) for name, one in described]
    if anthropic_models.VERSION in request.headers:
        return JSONResponse(anthropic_models.page(cards, request.query_params))
    return JSONResponse({"object": "list", "data": cards})


async def _model(models: Models, request: Request) -> Response:
    name = request.path_params["model"].replace("%2F", "/")  # clients encode the slashes of a name
    if not name:
        raise HTTPException(404)
    one = await models.described(name)
    card = _card(models, name, one)
    known = anthropic_models.VERSION in request.headers
    return JSONResponse(anthropic_models.model(card) if known else card)


def _card(models: Models, name: str, one: Service | FoundModel) -> dict[str, Any]:
    """Returns the card of a model, of which less is known if it is not loaded."""
    card: dict[str, Any] = {
        "id": name,
        "object": "model",
        "owned_by": "corepipe",
        "parent": None,
        "permission": [],
    }
    if isinstance(one, FoundModel):
        card |= {"created": one.changed, "root": str(one.path), "task": one.task.task.value}
        card |= dict.fromkeys(("max_model_len", "tool_call_parser", "reasoning_parser"))
    else:
        card |= _facts(one) | _of_adapter(one, name)
    if models.pool is not None:
        first = name if isinstance(one, FoundModel) else one.names[0]
        card["status"] = models.pool.status(first)
    return card


def _of_adapter(service: Service, name: str) -> dict[str, Any]:
    """Returns what differs in the card of a LoRA adapter: its root is its directory, its parent the model."""
    if service.adapters is None or name not in service.adapters:
        return {}
    adapter = service.adapters[name]
    return {"created": adapter.created, "root": adapter.path, "parent": service.names[0]}


def _facts(service: Service) -> dict[str, Any]:
    """Returns what the card of a model that is there says of it."""
    context, dialect = service.ready.max_model_len if service.ready else 0, service.dialect
    return {
        "created": service.created,
        "root": service.engine.model,
        "max_model_len": context or None,
        "tool_call_parser": dialect.calls.name if dialect.calls else None,
        "reasoning_parser": dialect.reasoning.name if dialect.reasoning else None,
        "task": service.task.task.value,
    }


async def _version(models: Models, _: Request) -> Response:
    return JSONResponse({"version": models.facts.version})


ROUTES = (
    Route("GET", "/v1/models", "The served names", ForAllModels(_models), answer=ModelList, of_model=True),
    Route(
        "GET",
        "/v1/models/{model}",
        "One of the served names",
        ForAllModels(_model),
        answer=ModelCard,
        of_model=True,
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
    version, base = models.facts.version, origin_of(request) + BASE
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
