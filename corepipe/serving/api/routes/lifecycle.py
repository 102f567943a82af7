"""Routes by which operators load, unload, lull and wake models, as llama.cpp and vLLM have them.

They are on the admin port alone: whoever may call them decides which models of all users leave the memory.
Users need none of them, since a request loads and wakes its model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.model_pool import ModelPool
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.serving.api.routes.route import Audience, ForAllModels, Route
from corepipe.serving.supervision.pool import ModelState

LEVELS = ("1", "2")
"""vLLM's levels of sleep: 1 keeps a copy of the weights in memory, 2 does not.  Here both give all memory
back: packed weights are mapped, and stay in the kernel's page cache as far as there is room."""
MODES = ("wait", "abort")
TAGS = frozenset({"weights", "kv_cache"})


class ModelNameRequest(Body, frozen=True, kw_only=True):
    """The body of POST /models/load and /models/unload."""

    model: Annotated[str, Meta(description="the name of the model")]


class LoadResult(Strict):
    success: Literal[True]


class SleepState(Strict):
    is_sleeping: bool


async def _load(models: Models, request: Request) -> Response:
    """Answers once the model is loaded; that has the errors that a request to the model would get."""
    name = parse(await request.body(), ModelNameRequest).model
    await models.described(name)
    async with models.using(name, request.receive):
        return JSONResponse({"success": True})


async def _unload(models: Models, request: Request) -> Response:
    """Answers when the model's answers have ended and its memory is free."""
    await unload(models, parse(await request.body(), ModelNameRequest).model)
    return JSONResponse({"success": True})


async def unload(models: Models, name: str) -> None:
    """Unloads a model that can be loaded again.  Raises ApiError for others."""
    one = await models.described(name)
    pool = pool_of(models)
    if isinstance(one, Service):
        if one in models.fixed:
            message = f"{echo(name)} is loaded for as long as the server runs; POST /sleep frees its memory."
            raise invalid(message, "model", "model_is_fixed")
        await pool.send_away(one, ModelState.UNLOADED)


async def _sleep(models: Models, request: Request) -> Response:
    """Answers when the engines have ended; answers under way end before that, or are aborted."""
    pool, query = pool_of(models), request.query_params
    if query.get("level", LEVELS[0]) not in LEVELS:
        raise invalid(f"level: {echo(query['level'])} is none of {', '.join(LEVELS)}.", "level")
    mode = query.get("mode", MODES[0])
    if mode not in MODES:
        raise invalid(f"mode: {echo(mode)} is none of {', '.join(MODES)}.", "mode")
    chosen, abort = await _chosen(models, request), mode == "abort"
    await asyncio.gather(*(pool.send_away(one, ModelState.SLEEPING, abort=abort) for one in chosen))
    return Response()


async def _wake_up(models: Models, request: Request) -> Response:
    """Answers when the models are awake; all of a model wakes, whichever tag is named."""
    pool, tags = pool_of(models), request.query_params.getlist("tags")
    if unknown := sorted({*tags} - TAGS):
        raise invalid(f"tags: {echo(unknown[0])} is none of {', '.join(sorted(TAGS))}.", "tags")
    for one in await _chosen(models, request):
        if one.asleep:
            async with pool.using(one.names[0], request.receive):
                pass
    return Response()


async def _is_sleeping(models: Models, request: Request) -> Response:
    chosen = await _chosen(models, request)
    return JSONResponse({"is_sleeping": bool(chosen) and all(one.asleep for one in chosen)})


async def _chosen(models: Models, request: Request) -> Sequence[Service]:
    """Returns the model that `?model=` names if it is there, or all of them.  Raises ApiError (404)."""
    name = request.query_params.get("model")
    if name is None:
        return models.services
    one = await models.described(name)
    return [one] if isinstance(one, Service) else []


def pool_of(models: Models) -> ModelPool:
    """Returns the pool of the models.  Raises ApiError (400) where no model can leave, as in a fleet."""
    if models.pool is None:
        raise invalid("The models of this server stay loaded.", code="models_are_fixed")
    return models.pool


ROUTES = (
    Route(
        "POST",
        "/models/load",
        "Loads a model",
        ForAllModels(_load),
        "answers when it has loaded; on the admin port alone",
        Audience.OPERATORS,
        answer=LoadResult,
        request=ModelNameRequest,
    ),
    Route(
        "POST",
        "/models/unload",
        "Frees the memory of a model",
        ForAllModels(_unload),
        "once its answers have ended; on the admin port alone",
        Audience.OPERATORS,
        answer=LoadResult,
        request=ModelNameRequest,
    ),
    Route(
        "POST",
        "/sleep",
        "Frees weights and KV caches",
        ForAllModels(_sleep),
        "of all models or of `?model=`, once their answers have ended (`mode=abort`: at once); the next "
        "request wakes a model; on the admin port alone",
        Audience.OPERATORS,
    ),
    Route(
        "POST",
        "/wake_up",
        "Wakes models that sleep",
        ForAllModels(_wake_up),
        "all or `?model=`; on the admin port alone",
        Audience.OPERATORS,
    ),
    Route(
        "GET",
        "/is_sleeping",
        "Whether all models sleep",
        ForAllModels(_is_sleeping),
        "or `?model=`; on the admin port alone",
        Audience.OPERATORS,
        answer=SleepState,
    ),
)
