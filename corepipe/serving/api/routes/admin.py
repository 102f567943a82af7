"""Routes for the operators of the server: metrics, placement and control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from prometheus_client.registry import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.routes.route import JSON, Audience, ForAllModels, Route
from corepipe.serving.telemetry.exposition import render

_EXPOSITIONS = ("text/plain", "application/openmetrics-text")


class Aborted(Strict):
    aborted: Literal[True]


async def _placement(models: Models, _: Request) -> Response:
    """Answers with the placement of the model, or with a list of the loaded ones if there are several."""
    loaded = [one for one in models.services if one.ready]
    if not loaded and models.fixed:
        models.first.require_ready()
    placed = [(one.names[0], _placement_of(one)) for one in loaded]
    if placed and not any(placement for _, placement in placed):
        raise ApiError(404, "This server replays answers; it has placed no model.", code="not_found")
    if models.several:
        return JSONResponse({"models": [{"name": name, **placement} for name, placement in placed]})
    return JSONResponse(placed[0][1])


def _placement_of(service: Service) -> Mapping[str, Any]:
    """Returns the placement of a model, also of one that sleeps.  Raises ApiError (503) in other states."""
    if service.asleep and service.ready is not None:
        return {**service.ready.placement, **_adapters_of(service), "state": service.state}
    return {**service.require_ready().placement, **_adapters_of(service)}


def _adapters_of(service: Service) -> dict[str, Any]:
    """Returns what a placement says of LoRA adapters, if the model may have some."""
    if service.adapters is None:
        return {}
    return {"max_loras": service.engine.lora_slots, "lora_adapters": service.adapters.described()}


async def _metrics(models: Models, request: Request) -> Response:
    return _exposed(models.registry, request)


async def _neuron(models: Models, request: Request) -> Response:
    return _exposed(models.neuron_registry, request)


def _exposed(registry: CollectorRegistry, request: Request) -> Response:
    body, content_type = render(registry, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


async def _abort_requests(models: Models, _: Request) -> Response:
    if not models.accepts and models.fixed:
        models.first.require_ready()
    models.abort_all()
    return JSONResponse({"aborted": True})


ROUTES = (
    Route(
        "GET",
        "/v1/placement",
        "How the model is placed on the emulated device",
        ForAllModels(_placement),
        audience=Audience.WATCHERS,
        others=(JSON,),
    ),
    Route(
        "GET",
        "/metrics",
        "Prometheus metrics",
        ForAllModels(_metrics),
        "as text, or in OpenMetrics' form",
        Audience.WATCHERS,
        others=_EXPOSITIONS,
        scraped=True,
        counted=False,
    ),
    Route(
        "GET",
        "/metrics/neuron",
        "The emulated device",
        ForAllModels(_neuron),
        "neuron-monitor's names",
        Audience.WATCHERS,
        others=_EXPOSITIONS,
        counted=False,
    ),
    Route(
        "POST",
        "/abort_requests",
        "Ends every answer under way",
        ForAllModels(_abort_requests),
        "on the admin port alone",
        Audience.OPERATORS,
        answer=Aborted,
    ),
)
