"""What is for those who run the server: metrics, placement, control."""

from __future__ import annotations

from typing import Literal

from prometheus_client.registry import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.http_errors import ApiError
from corepipe.serving.api.routes.answers import Strict
from corepipe.serving.api.routes.route import JSON, Audience, Route, plain
from corepipe.serving.api.routes.service import Service
from corepipe.serving.telemetry.exposition import render

_EXPOSITIONS = ("text/plain", "application/openmetrics-text")


class Aborted(Strict):
    aborted: Literal[True]


async def _placement(service: Service, _: Request) -> Response:
    placement = service.require_ready().placement
    if not placement:
        raise ApiError(404, "No model is placed: answers are replayed here.", code="not_found")
    return JSONResponse(placement)


async def _metrics(service: Service, request: Request) -> Response:
    return _exposed(service.metrics.registry, request)


async def _neuron(service: Service, request: Request) -> Response:
    return _exposed(service.neuron.registry, request)


def _exposed(registry: CollectorRegistry, request: Request) -> Response:
    body, content_type = render(registry, request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})


async def _abort_requests(service: Service, _: Request) -> Response:
    service.require_ready()
    service.client.abort_all()
    return JSONResponse({"aborted": True})


ROUTES = (
    Route(
        "GET",
        "/v1/placement",
        "Where the model is on the emulated device",
        plain(_placement),
        audience=Audience.WATCHERS,
        others=(JSON,),
    ),
    Route(
        "GET",
        "/metrics",
        "Prometheus metrics",
        plain(_metrics),
        "as text, or in OpenMetrics' form",
        Audience.WATCHERS,
        others=_EXPOSITIONS,
        counted=False,
    ),
    Route(
        "GET",
        "/metrics/neuron",
        "The emulated device",
        plain(_neuron),
        "neuron-monitor's names",
        Audience.WATCHERS,
        others=_EXPOSITIONS,
        counted=False,
    ),
    Route(
        "POST",
        "/abort_requests",
        "Ends every answer under way",
        plain(_abort_requests),
        "on the admin port alone",
        Audience.OPERATORS,
        answer=Aborted,
    ),
)
