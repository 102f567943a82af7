"""Requests are counted for the route that answers them."""

from __future__ import annotations

import pytest
from prometheus_client.registry import CollectorRegistry

from corepipe.serving.api.routes.route import HttpMetrics, Route
from corepipe.serving.api.table import ROUTES

COUNTED = [route for route in ROUTES if route.counted]


@pytest.mark.parametrize("routes", [ROUTES, ROUTES[::-1]], ids=["in order", "in reverse"])
@pytest.mark.parametrize("name", ["tiny", "organization/tiny"])
@pytest.mark.parametrize("route", COUNTED, ids=lambda route: f"{route.method} {route.path}")
def test_a_request_counts_for_the_route_of_its_path_wherever_that_is_listed(
    route: Route, name: str, routes: list[Route]
) -> None:
    registry = CollectorRegistry()
    HttpMetrics(registry, routes).observe(route.method, route.path.replace("{model}", name), 200, 0, 0, 0.1)
    labels = {"handler": route.path, "status": "2xx", "method": route.method}
    assert registry.get_sample_value("http_requests_total", labels) == 1


@pytest.mark.parametrize("path", ["/health", "/ping", "/metrics", "/metrics/neuron", "/version", "/v2"])
def test_probes_and_scrapes_are_not_counted(path: str) -> None:
    registry = CollectorRegistry()
    HttpMetrics(registry, ROUTES).observe("GET", path, 200, 0, 0, 0.1)
    assert not [one for metric in registry.collect() for one in metric.samples if one.value]
