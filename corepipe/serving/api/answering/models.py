"""The models of one server: chooses the model of a request, and reports the state of all together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import BYTE_ORDER_MARK
from corepipe.serving.api.http.guard import read_again, read_body
from corepipe.serving.telemetry.by_model import joint_registry

VERSION = "1"
"""The version of every model: there is one."""


class Models:
    """The models of a server, each a Service with its own engine; the first gets requests that name no model.

    `failure` is the error that ended the server; `on_failure` is called then.  If one of several models fails
    for good after it has loaded, the others go on.  All share the server's keys, quotas, connections and
    metrics.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self.services = tuple(services)
        self.first = self.services[0]
        self.names = tuple(name for one in self.services for name in one.names)
        self._by_name = {name: one for one in self.services for name in one.names}
        metrics: dict[str, Sequence[Collector]] = {
            one.names[0]: one.metrics.collectors for one in self.services
        }
        neuron: dict[str, Sequence[Collector]] = {one.names[0]: [one.neuron] for one in self.services}
        self.registry = joint_registry(metrics, several=self.several)
        self.neuron_registry = joint_registry(neuron, several=self.several, host=False, labelled=False)
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = _nothing
        for one in self.services:
            one.on_failure = partial(self._lose, one)
            one.listed = self.names if self.several else ()

    @property
    def several(self) -> bool:
        return len(self.services) > 1

    def named(self, name: str | None) -> Service:
        """Returns the model of that name; the first for None and for an unknown name, which its routes then
        refuse in the form of their protocol."""
        return self.first if name is None else self._by_name.get(name, self.first)

    @asynccontextmanager
    async def using(self, name: str | None) -> AsyncIterator[Service]:
        """Yields the model of that name, as `named` does; it stays until the body of `async with` ends."""
        yield self.named(name)

    @property
    def state(self) -> str:
        """A key of `STATES`, or "degraded": all models were ready, some are not now, and the others serve."""
        states = [one.state for one in self.services]
        alike = set(states)
        if len(alike) == 1:
            return states[0]
        if "draining" in alike:
            return "draining"
        if "loading" in alike:
            return "loading"
        return "degraded" if "ready" in alike else "restarting"

    async def start(self) -> None:
        """Loads the models that are not loaded, one by one: a model takes the most memory while it loads."""
        for one in self.services:
            if one.ready is None and self.failure is None:
                await one.start()

    def drain(self) -> None:
        """Refuses new requests from now on."""
        for one in self.services:
            one.drain()

    @property
    def draining(self) -> bool:
        return self.first.draining

    def abort_all(self) -> None:
        """Aborts all requests under way."""
        for one in self.services:
            one.client.abort_all()

    async def close_engines(self) -> None:
        """Closes the engines; their open streams end first."""
        await asyncio.gather(*(one.client.close() for one in self.services))

    def close(self) -> None:
        """Ends the threads and processes that work beside the event loop."""
        for one in self.services:
            one.close()

    def _lose(self, lost: Service) -> None:
        """Handles a model that failed for good: ends the server unless another model still serves."""
        left = [one for one in self.services if one.failure is None]
        if left and lost.ready is not None:
            names = ", ".join(one.names[0] for one in left)
            _log().error("model %s failed for good: %s; still served: %s", lost.names[0], lost.failure, names)
            return
        self.failure = lost.failure
        self.on_failure()


class ModelRouter:
    """ASGI application of a route of several models; the path or the body names the model, else the first.

    make: makes the application of the route for one model, when that gets its first request.
    """

    def __init__(self, models: Models, make: Callable[[Service], ASGIApp]) -> None:
        self._models = models
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = None if (path_name := scope["path_params"].get("model")) is None else named_in_path(path_name)
        if name is None and scope["method"] == "POST":
            body = await read_body(receive)
            name, receive = model_of(body), read_again(body, receive)
        async with self._models.using(name) as service:
            await self._app(service)(scope, receive, send)

    def _app(self, service: Service) -> ASGIApp:
        app = service.apps.get(self)
        if app is None:
            app = service.apps[self] = self._make(service)
        return app


def named_in_path(name: str) -> str:
    """Returns the model that a path names; clients encode its slashes; `/versions/1` may follow."""
    return name.replace("%2F", "/").removesuffix(f"/versions/{VERSION}")


class _Body(msgspec.Struct):
    model: str | None = None


def model_of(body: bytes) -> str | None:
    """Returns the model that a body names; None for a wrong body, which the first model's route refuses."""
    try:
        return msgspec.json.decode(body.removeprefix(BYTE_ORDER_MARK), type=_Body).model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _nothing() -> None:
    """Does nothing: the handler of a failure where the server was not started by `run_server`."""
