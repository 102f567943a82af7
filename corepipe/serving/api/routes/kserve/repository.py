"""The model repository extension of the Open Inference Protocol: which models there are; load and unload."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import VERSION, Models, named_in_path
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.routes.kserve.metadata import Outcome
from corepipe.serving.api.routes.lifecycle import unload
from corepipe.serving.api.routes.route import Audience, ForAllModels, Route

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
STATES: dict[str, State] = {
    "loaded": "READY",
    "sleeping": "READY",
    "ready": "READY",
    "loading": "LOADING",
    "unloading": "UNLOADING",
}
"""States of a model, and the extension's words for them; all others are UNAVAILABLE."""


class IndexRequest(Body, frozen=True, kw_only=True):
    """The body of POST /v2/repository/index."""

    ready: Annotated[bool, Meta(description="list only the models that are ready")] = False


class ModelParameters(Body, frozen=True, kw_only=True):
    """The body of the other two: the extension's parameters, of which none is supported."""

    parameters: Annotated[dict[str, Any] | None, Meta(description="none is supported: `{}`")] = None


class ModelIndex(Strict):
    name: str
    version: str
    state: State
    reason: str


async def _index(models: Models, request: Request) -> Response:
    ready = parse(await request.body() or b"{}", IndexRequest).ready
    states = [(name, one.state, "") for one in models.fixed for name in one.names]
    if models.pool is not None and models.pool.on_demand is not None:
        known = await models.pool.on_demand.look()
        found = {name: models.pool.status(name) for name in known if name not in models.names}
        states += [(name, str(one["value"]), str(one.get("error", ""))) for name, one in found.items()]
    index = [
        ModelIndex(name=name, version=VERSION, state=STATES.get(state, "UNAVAILABLE"), reason=why)
        for name, state, why in states
    ]
    listed = [one for one in index if one.state == "READY" or not ready]
    return Response(msgspec.json.encode(listed), media_type="application/json")


async def _load(models: Models, request: Request) -> Response:
    name = await _name(request)
    await models.described(name)
    async with models.using(name, request.receive):
        return Response(b"{}", media_type="application/json")


async def _unload(models: Models, request: Request) -> Response:
    await unload(models, await _name(request))
    return Response(b"{}", media_type="application/json")


async def _name(request: Request) -> str:
    """Returns the name in the path.  Raises ApiError for parameters."""
    if parse(await request.body() or b"{}", ModelParameters).parameters:
        raise invalid("parameters: none is supported here.", "parameters")
    return named_in_path(request.path_params["model"])


ROUTES = (
    Route(
        "POST",
        "/v2/repository/index",
        "The models that can be served",
        ForAllModels(_index),
        answer=ModelIndex,
        listed=True,
        request=IndexRequest,
        failures=(Outcome,),
    ),
    Route(
        "POST",
        "/v2/repository/models/{model}/load",
        "As `/models/load`",
        ForAllModels(_load),
        "on the admin port alone",
        Audience.OPERATORS,
        request=ModelParameters,
        failures=(Outcome,),
    ),
    Route(
        "POST",
        "/v2/repository/models/{model}/unload",
        "As `/models/unload`",
        ForAllModels(_unload),
        "on the admin port alone",
        Audience.OPERATORS,
        request=ModelParameters,
        failures=(Outcome,),
    ),
)
