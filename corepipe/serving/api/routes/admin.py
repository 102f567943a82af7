"""What is for those who run the server: metrics, placement, control."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Header
from starlette.responses import Response

from corepipe.serving.api.routes.answers import Strict
from corepipe.serving.api.routes.service import Service
from corepipe.serving.telemetry.exposition import render


class Aborted(Strict):
    aborted: Literal[True]


def watch_router(service: Service) -> APIRouter:
    """How it goes; on the public port where there is no other."""
    router = APIRouter()

    @router.get("/v1/placement")
    async def placement() -> dict[str, Any]:
        return service.require_ready().placement

    @router.get("/metrics")
    async def metrics(accept: str = Header(default="")) -> Response:
        body, content_type = render(service.metrics.registry, accept)
        return Response(body, headers={"content-type": content_type})

    @router.get("/metrics/neuron")
    async def neuron(accept: str = Header(default="")) -> Response:
        body, content_type = render(service.neuron.registry, accept)
        return Response(body, headers={"content-type": content_type})

    return router


def control_router(service: Service) -> APIRouter:
    """What changes something; on the admin port alone."""
    router = APIRouter()

    @router.post("/abort_requests")
    async def abort_requests() -> dict[str, bool]:
        service.require_ready()
        service.client.abort_all()
        return {"aborted": True}

    return router
