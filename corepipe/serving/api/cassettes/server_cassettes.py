"""Sets up recording and replaying in an application, as the server's configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import NO_MODEL_LOADED, Service
from corepipe.serving.api.cassettes.library import CassetteLibrary, read_library
from corepipe.serving.api.cassettes.record import RecordingMiddleware
from corepipe.serving.api.cassettes.redaction import read_redaction
from corepipe.serving.api.cassettes.replay import ReplayMiddleware
from corepipe.serving.api.cassettes.writer import CassetteWriter
from corepipe.serving.api.http.errors import unavailable
from corepipe.serving.api.routes.route import Route
from corepipe.serving.api.table import is_recorded
from corepipe.serving.config import ServerConfig

OUTCOMES = ("recorded", "lost", "replayed", "refused", "computed")


class CassetteMetrics(Collector):
    """Counts exchanges that were recorded or lost, and requests that were replayed, refused or computed."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(OUTCOMES, 0)

    def count(self, outcome: str) -> None:
        self._counts[outcome] += 1

    def collect(self) -> Iterator[Metric]:
        what = "Exchanges recorded or lost, and requests replayed, refused or computed."
        family = CounterMetricFamily("corepipe_cassettes", what, labels=("outcome",))
        for outcome, count in self._counts.items():
            family.add_metric((outcome,), count)
        yield family


class ServerCassettes:
    """The writer and the library of a server's configuration.  Raises UserError for a wrong path or rule."""

    def __init__(self, server: ServerConfig) -> None:
        self.metrics = CassetteMetrics()
        self.library: CassetteLibrary | None = None
        self._writer: CassetteWriter | None = None
        self._server = server
        redaction = read_redaction(server.record_redact)
        folder, flag = server.recorded_into
        if folder is not None:
            self._writer = CassetteWriter(folder, redaction, flag, self.metrics.count)
        if server.replay is not None:
            self.library = read_library(server.replay, redaction, is_recorded)

    def install(self, app: FastAPI, models: Models) -> None:
        """Adds the middleware directly around the routes of an application, before all other middleware."""
        models.registry.register(self.metrics)
        if self._writer is not None:
            app.add_middleware(RecordingMiddleware, models=models, writer=self._writer)
        if self.library is not None:
            app.add_middleware(
                ReplayMiddleware,
                models=models,
                library=self.library,
                count=self.metrics.count,
                paced=self._server.replay_pace == "recorded",
                computes=self._server.replay_else != "refuse",
            )

    def replayed_routes(self, routes: Iterable[Route]) -> list[Route]:
        """Returns the routes of a server without a model: only the library answers, its routes refuse all."""
        return [
            replace(one, make=_refuse_all) if one.recorded and one.method == "POST" else one for one in routes
        ]

    def close(self) -> None:
        """Waits until all recorded exchanges are written."""
        if self._writer is not None:
            self._writer.close()


def _refuse_all(_: Service) -> ASGIApp:
    async def refuse(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise unavailable(NO_MODEL_LOADED)

    return refuse
