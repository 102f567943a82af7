"""What the server tells those who use it: models, health, version."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.http_errors import RETRY_SECONDS
from corepipe.serving.api.routes.answers import Strict
from corepipe.serving.api.routes.service import Service


class ModelCard(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    permission: list[Any]


class ModelList(Strict):
    object: Literal["list"]
    data: list[ModelCard]


class Health(Strict):
    """`what` is being loaded and how far it is `done`, 0 to 1, while `status` is loading."""

    status: str
    what: str | UnsetType = UNSET
    done: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class Version(Strict):
    version: str


def info_router(service: Service) -> APIRouter:
    """GET routes; those that need the engine answer 503 until it is ready."""
    router = APIRouter()
    created = int(time.time())

    def card(name: str) -> dict[str, Any]:
        ready = service.ready
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "corepipe",
            "root": service.engine.model,
            "parent": None,
            "max_model_len": ready.max_model_len if ready else None,
            "permission": [],
        }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in service.names]}

    @router.get("/v1/models/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        return card(service.require_model(model.replace("%2F", "/")))  # as clients encode a name with slashes

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": service.version}

    return router


def health_router(service: Service) -> APIRouter:
    """Probes.  Alive: the process need not be restarted.  Ready, and /health: requests are taken."""
    router = APIRouter()

    @router.get("/health")
    @router.get("/health/ready")
    @router.get("/ping")
    async def ready() -> Response:
        return _probe(service, ok=service.state == "ready")

    @router.get("/health/live")
    async def live() -> Response:
        return _probe(service, ok=service.state != "failed")

    return router


def _probe(service: Service, *, ok: bool) -> Response:
    headers = None if ok else {"retry-after": str(RETRY_SECONDS)}
    body: dict[str, Any] = {"status": service.state}
    if service.state == "loading" and service.progress is not None:
        body |= {"what": service.progress.what, "done": service.progress.done}
    return JSONResponse(body, 200 if ok else 503, headers)
