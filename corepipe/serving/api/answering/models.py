"""The models of one server: chooses the model of a request, and reports the state of all together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.engine.config import EngineConfig
from corepipe.models.directory import FoundModel
from corepipe.serving.api.answering.model_pool import ModelPool
from corepipe.serving.api.answering.service import STATES, Service
from corepipe.serving.api.bodies.reading import BYTE_ORDER_MARK, decode
from corepipe.serving.api.http.errors import ApiError, echo, invalid, unavailable
from corepipe.serving.api.http.guard import read_again, read_body
from corepipe.serving.telemetry.by_model import joint_registry
from corepipe.serving.telemetry.pool_metrics import PoolMetrics

VERSION = "1"
"""The version of every model: there is one."""


class ServerFacts(NamedTuple):
    """Facts about a server, whatever its models are.  engine: the settings of models that have none of their
    own."""

    version: str
    engine: EngineConfig
    strict: bool


class Models:
    """The models of a server, each a Service with its own engine; the first gets requests that name no model.

    fixed: the models that are loaded at the start; a server with a pool may have none.  pool: loads others
    when a request names them, and lets models sleep; None: all stay loaded.

    `failure` is the error that ended the server; `on_failure` is called then.  If one of several models fails
    for good after it has loaded, the others go on.  All share the server's keys, quotas, connections and
    metrics.
    """

    def __init__(
        self, fixed: Sequence[Service], pool: ModelPool | None = None, facts: ServerFacts | None = None
    ) -> None:
        self.fixed = tuple(fixed)
        self.pool = pool
        self.facts = facts or ServerFacts(self.first.version, self.first.engine, self.first.strict)
        self.names = tuple(name for one in self.fixed for name in one.names)
        self._by_name = {name: one for one in self.fixed for name in one.names}
        self.registry, self.neuron_registry = self._registries()
        self.draining = False
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = _nothing
        for one in self.fixed:
            one.on_failure = partial(self._lose, one)
            one.listed = self.names if self.several else ()

    @property
    def services(self) -> Sequence[Service]:
        """The models that are there: the fixed ones, and those that were loaded on demand."""
        return self.fixed if self.pool is None else (*self.fixed, *self.pool.resident)

    @property
    def first(self) -> Service:
        """The first of the fixed models.  Raises ApiError (400) if there is none."""
        if not self.fixed:
            raise _name_missing()
        return self.fixed[0]

    @property
    def several(self) -> bool:
        """Tells whether a request has to name its model."""
        return len(self.fixed) != 1 or self.on_demand

    @property
    def on_demand(self) -> bool:
        """Tells whether models are loaded when a request names them."""
        return self.pool is not None and self.pool.on_demand is not None

    def named(self, name: str | None) -> Service:
        """Returns the model of that name; the first for None and for an unknown name, which its routes then
        refuse in the form of their protocol."""
        if name is None:
            return self.first
        there = self._fixed_of(name) or next((one for one in self.services if name in one.names), None)
        return there or self.first

    def _fixed_of(self, name: str) -> Service | None:
        """Returns the fixed model that has the name, for itself or for a LoRA adapter."""
        with_adapter = (one for one in self.fixed if one.adapters and one.adapters.could_serve(name))
        return self._by_name.get(name) or next(with_adapter, None)

    @asynccontextmanager
    async def using(self, name: str | None, receive: Receive) -> AsyncIterator[Service]:
        """Yields the model of that name, as `named` does; it stays until the body of `async with` ends.

        It is loaded first if need be, while the client is there by `receive`.  Raises ApiError.
        """
        if self.pool is None:
            yield self.named(name)
            return
        if self.draining:
            raise unavailable(STATES["draining"])
        fixed = self.first if name is None else self._fixed_of(name)
        if fixed is None and not self.on_demand:
            yield self.first  # its routes refuse the name
            return
        await self.require(name)
        async with self.pool.using(name or "" if fixed is None else fixed.names[0], receive) as service:
            yield service

    async def require(self, name: str | None) -> None:
        """Raises ApiError for a name that is none of a model, and for None if there is no first model."""
        if name is None:
            _ = self.first
        elif self.on_demand and self._fixed_of(name) is None and await self._not_found(name):
            message = f"The model {echo(name)} does not exist; /v1/models lists those that do."
            raise ApiError(404, message, code="model_not_found", param="model")

    async def _not_found(self, name: str) -> bool:
        return self.pool is not None and await self.pool.find(name) is None

    async def described(self, name: str) -> Service | FoundModel:
        """Returns what is known of a model, without loading it.  Raises ApiError (404)."""
        found = None if name in self._by_name or self.pool is None else await self.pool.find(name)
        if found is None:
            await self.require(name)
            service = self.named(name)
            service.require_model(name)
            return service
        return next((one for one in self.services if name in one.names), found)

    @property
    def accepts(self) -> bool:
        """Tells whether requests are accepted."""
        return self.state in ("ready", "degraded", "sleeping")

    @property
    def state(self) -> str:
        """A key of `STATES`, or "degraded": all models were ready, some are not now, and the others serve.

        Models that are loaded on demand do not count: they come and go.
        """
        states = [one.state for one in self.fixed] or ["draining" if self.draining else "ready"]
        if len(states) > 1:
            states = ["ready" if one == "sleeping" else one for one in states]
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
        for one in self.fixed:
            if one.ready is None and self.failure is None:
                await one.start()
                if self.pool is not None:
                    self.pool.started(one)
        if self.pool is not None and self.pool.on_demand is not None:
            await self.pool.on_demand.start()

    def drain(self) -> None:
        """Refuses new requests from now on."""
        self.draining = True
        if self.pool is not None:
            self.pool.drain()
        for one in self.services:
            one.drain()

    def abort_all(self) -> None:
        """Aborts all requests under way."""
        for one in self.services:
            one.client.abort_all()

    async def close_engines(self) -> None:
        """Closes the engines; their open streams end first."""
        if self.pool is not None:
            await self.pool.end()
        await asyncio.gather(*(one.client.close() for one in self.fixed))

    def close(self) -> None:
        """Ends the threads and processes that work beside the event loop."""
        for one in self.services:
            one.close()

    def _lose(self, lost: Service) -> None:
        """Handles a model that failed for good: ends the server unless another model still serves."""
        left = [one for one in self.fixed if one.failure is None]
        if left and lost.ready is not None:
            names = ", ".join(one.names[0] for one in left)
            _log().error("model %s failed for good: %s; still served: %s", lost.names[0], lost.failure, names)
            return
        self.failure = lost.failure
        self.on_failure()

    def _registries(self) -> tuple[CollectorRegistry, CollectorRegistry]:
        """Makes the registries of /metrics and of /metrics/neuron."""
        metrics: dict[str, Sequence[Collector]] = {one.names[0]: one.metrics.collectors for one in self.fixed}
        neuron: dict[str, Sequence[Collector]] = {one.names[0]: [one.neuron] for one in self.fixed}
        if self.pool is not None and self.pool.on_demand is not None:
            self.pool.on_demand.metrics, self.pool.on_demand.neuron = metrics, neuron
        several = self.several
        registry = joint_registry(metrics, several=several)
        if self.pool is not None:
            registry.register(PoolMetrics(self.pool.engines))
        return registry, joint_registry(neuron, several=several, host=False, labelled=False)


class ModelRouter:
    """ASGI application of a route of several models; the path or the body names the model, else the first.

    make: makes the application of the route for one model, when that gets its first request.
    """

    def __init__(self, models: Models, make: Callable[[Service], ASGIApp]) -> None:
        self._models = models
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path_name, read = scope["path_params"].get("model"), receive
        name = None if path_name is None else named_in_path(path_name)
        if name is None and scope["method"] == "POST":
            body = await read_body(receive)
            name, read = model_of(body), read_again(body, receive)
            if name is None and not self._models.fixed:
                decode(body)  # raises where the body is at fault
        elif name is None and scope["query_string"]:
            name = next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("model", ())), None)
        async with self._models.using(name, receive) as service:
            await self._app(service)(scope, read, send)

    def _app(self, service: Service) -> ASGIApp:
        app = service.apps.get(self)
        if app is None:
            app = service.apps[self] = self._make(service)
        return app


def named_in_path(name: str) -> str:
    """Returns the model that a path names; clients encode its slashes; `/versions/1` may follow."""
    return name.replace("%2F", "/").removesuffix(f"/versions/{VERSION}")


def _name_missing() -> ApiError:
    return invalid("Missing required parameter: 'model'.", "model", "missing_required_parameter")


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
