"""The models of one server: which of them a request is for, and what is said of all of them together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.protocol import BYTE_ORDER_MARK
from corepipe.serving.api.http.limits import read_again, read_body
from corepipe.serving.telemetry.by_model import joint_registry

VERSION = "1"
"""Of every model: there is one."""


class Models:
    """One or several, each a Service with an engine of its own; the first has the requests that name none.

    `failure` is what ended the server; `on_failure` is called then.  One of several that is lost for good
    after it has loaded leaves the others serving.  Keys, quotas, connections and metrics are the server's.
    """

    def __init__(self, services: Sequence[Service]) -> None:
        self.services = tuple(services)
        self.first = self.services[0]
        self.names = tuple(name for one in self.services for name in one.names)
        self._by_name = {name: one for one in self.services for name in one.names}
        metrics = {one.names[0]: one.metrics for one in self.services}
        self.registry = joint_registry({name: each.collectors for name, each in metrics.items()})
        neuron = {one.names[0]: [one.neuron] for one in self.services}
        self.neuron_registry = joint_registry(neuron, host=False, labelled=False)
        self.failure: Exception | None = None
        self.on_failure: Callable[[], None] = _nothing
        for one in self.services:
            one.on_failure = partial(self._lose, one)
            one.listed = self.names if self.several else ()

    @property
    def several(self) -> bool:
        return len(self.services) > 1

    def named(self, name: str | None) -> Service:
        """The model of that name; the first where there is no name, or none of it: its routes refuse that, as
        their protocol has it."""
        return self.first if name is None else self._by_name.get(name, self.first)

    @property
    def state(self) -> str:
        """A key of `STATES`, or "degraded": all have been ready, some are not now, and the others serve."""
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
        """Loads those that are not loaded, one after the other: while one loads it takes the most memory."""
        for one in self.services:
            if one.ready is None and self.failure is None:
                await one.start()

    def drain(self) -> None:
        """From now on nothing more is taken."""
        for one in self.services:
            one.drain()

    @property
    def draining(self) -> bool:
        return self.first.draining

    def abort_all(self) -> None:
        """Gives up all requests that are open."""
        for one in self.services:
            one.client.abort_all()

    async def close_engines(self) -> None:
        """Ends the engines; open streams end first."""
        await asyncio.gather(*(one.client.close() for one in self.services))

    def close(self) -> None:
        """Ends what works beside the event loop, its processes too."""
        for one in self.services:
            one.close()

    def _lose(self, lost: Service) -> None:
        """A model has failed for good."""
        left = [one for one in self.services if one.failure is None]
        if left and lost.ready is not None:
            names = ", ".join(one.names[0] for one in left)
            _log().error("%s is lost: %s; %s goes on", lost.names[0], lost.failure, names)
            return
        self.failure = lost.failure
        self.on_failure()


class ModelRouter:
    """Pure ASGI: one route of several models.  The path names one, or the body does, or it is the first."""

    def __init__(self, models: Models, apps: Sequence[ASGIApp]) -> None:
        self._models = models
        self._apps = dict(zip(models.services, apps, strict=True))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = None if (told := scope["path_params"].get("model")) is None else named_in_path(told)
        if name is None and scope["method"] == "POST":
            body = await read_body(receive)
            name, receive = _model_of(body), read_again(body, receive)
        await self._apps[self._models.named(name)](scope, receive, send)


def named_in_path(told: str) -> str:
    """The model that a path names, whose slashes clients encode; a version may follow (`/versions/1`)."""
    return told.replace("%2F", "/").removesuffix(f"/versions/{VERSION}")


class _Body(msgspec.Struct):
    model: str | None = None


def _model_of(body: bytes) -> str | None:
    """What a body names as its model; None where it is wrong, which the first model's route will say."""
    try:
        return msgspec.json.decode(body.removeprefix(BYTE_ORDER_MARK), type=_Body).model
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _log() -> logging.Logger:
    return logging.getLogger(__name__)


def _nothing() -> None:
    """What happens at a failure where nobody runs the server through `run_server`."""
