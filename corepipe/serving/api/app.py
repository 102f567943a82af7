"""The HTTP server: routes, middleware, and the start and end of the engine behind them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.types import Lifespan

from corepipe.engine.config import EngineConfig
from corepipe.engine.freeze_heap import freeze_heap
from corepipe.engine.messages import Ready
from corepipe.errors import UserError
from corepipe.models.tasks import TaskInfo
from corepipe.serving.api.answering.model_pool import ModelPool, limits_of
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import GENERATES, Service
from corepipe.serving.api.batches.manager import Batches
from corepipe.serving.api.http import errors as http_errors
from corepipe.serving.api.http.connection import HEAD_SECONDS, Connection
from corepipe.serving.api.http.guard import RequestGuard
from corepipe.serving.api.http.inject import AbortableConnection, FaultMiddleware, InjectedFaults
from corepipe.serving.api.http.limits import ConnectionLimit, ConnectionMetrics, make_room
from corepipe.serving.api.http.ports import BACKLOG, STATE_KEY, PortRouter, ServerPort, listen_all, open_at
from corepipe.serving.api.http.reload import FileReload
from corepipe.serving.api.http.tenants import Tenants
from corepipe.serving.api.http.tls import tls_certificate
from corepipe.serving.api.responses.endpoint import computation
from corepipe.serving.api.responses.kept import KeptResponses
from corepipe.serving.api.routes import openapi
from corepipe.serving.api.routes.missing import MissingRoutes
from corepipe.serving.api.routes.route import HttpMetrics, Route, RoutePaths, TrafficMiddleware
from corepipe.serving.api.state import log_state
from corepipe.serving.api.table import (
    GENERATING_PATHS,
    INSTEAD,
    KEYLESS_PATHS,
    PATHS_OF_LINES,
    ROUTES,
    admin_routes,
    metrics_routes,
    public_routes,
)
from corepipe.serving.config import ServerConfig
from corepipe.serving.faults import FaultSequence
from corepipe.serving.keys import read_keys
from corepipe.serving.stores.store import Store
from corepipe.signals import Handler, answered

if TYPE_CHECKING:  # slow to import
    from corepipe.models.text.tokenizer import Tokenizer
    from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes
    from corepipe.serving.supervision.client import EngineClient

OTHER_CONNECTIONS = 64
"""The most connections of each port that is not for users."""
ENDING = (signal.SIGINT, signal.SIGTERM)
DRAIN_TICK_SECONDS = 0.05
"""Seconds between two checks whether answers are still under way."""

LAST_WORDS_SECONDS = 2
"""Time for aborted answers at a shutdown to send their clients an error."""


def create_app(
    client: EngineClient,
    tokenizer: Tokenizer | None,
    engine: EngineConfig,
    server: ServerConfig,
    version: str,
    ready: Ready | None = None,
    cassettes: ServerCassettes | None = None,
    task: TaskInfo = GENERATES,
) -> FastAPI:
    """Makes the ASGI application of one model, as `create_app_of`.

    With `ready` the caller has started the engine and closes it.  Without, the application's lifespan starts
    the engine beside the open port (requests get 503 until it has loaded) and closes it at the end;
    `run_server` then raises the error of a failed start.  With `cassettes` that only replay, `tokenizer` is
    None.  `task`: the model's task.  Raises UserError for a bad chat template or key file.
    """
    if tokenizer is not None and server.chat_template is not None:
        tokenizer = tokenizer.with_chat_template(server.chat_template)
    service = Service(client, tokenizer, engine, server, version, task)
    if ready is not None:
        service.set_ready(ready)
    limits = limits_of(server, engine)
    pool = None if limits is None else ModelPool(limits, [service], wait_seconds=server.max_queue_seconds)
    if pool is not None and ready is not None:
        pool.started(service)
    return create_app_of(Models([service], pool), server, cassettes)


def create_app_of(models: Models, server: ServerConfig, cassettes: ServerCassettes | None = None) -> FastAPI:
    """Makes the ASGI application of `models`; its `state.models` are the models, its `state.others` the
    applications of the server's other ports, its `state.store` what clients store.

    `cassettes`: record or replay exchanges; closed at the end.  Raises UserError for a bad key file
    or store.
    """
    version, engine, _ = models.facts
    routes = public_routes(admin_port=server.admin_port is not None)
    if cassettes is not None and server.replays_alone:
        routes = cassettes.replayed_routes(routes)
    app = _bare_app(version, routes, _lifespan)
    app.state.models = models
    http = HttpMetrics(models.registry, ROUTES)
    tenants = Tenants(
        read_keys(server.api_keys, server.api_key_file),
        server.max_requests_per_key,
        server.max_tokens_per_minute_per_key,
    )
    app.state.tenants = tenants
    app.state.store = Store(server)
    if server.store_dir is not None:
        app.state.store.open()
    app.state.batches = Batches(app, models, server, tenants, PATHS_OF_LINES)
    app.state.responses = KeptResponses(app, models, tenants)
    _furnish(app, models, routes, keys=bool(tenants))
    if cassettes is not None:
        cassettes.install(app, models)
    if server.inject:
        draw, counts = FaultSequence(server.inject, engine.seed), InjectedFaults(models.registry)
        app.add_middleware(FaultMiddleware, draw=draw, counts=counts, paths=GENERATING_PATHS)
    app.state.closers = [_trace(app, server, engine, version), models.close, app.state.store.close]
    if cassettes is not None:
        app.state.closers.append(cassettes.close)
    _guard(app, server, server.host, tenants, routes, server.allowed_origins)
    app.add_middleware(TrafficMiddleware, metrics=http)
    other_ports = {
        ServerPort.ADMIN: (admin_routes(), server.admin_api_keys),
        ServerPort.METRICS: (metrics_routes(), ()),
    }
    app.state.others = {
        port: _other_app(models, server, http, host, *other_ports[port])
        for port, (host, _) in open_at(server).items()
        if port in other_ports
    }
    if app.state.others:
        app.add_middleware(PortRouter, others=app.state.others)
    return app


def _other_app(
    models: Models,
    server: ServerConfig,
    http: HttpMetrics,
    host: str,
    routes: Sequence[Route],
    keys: Sequence[str],
) -> FastAPI:
    """Makes the application of a port that is not for users: these routes, behind `keys` if not empty."""
    other = _bare_app(models.facts.version, routes, None)
    tenants = Tenants(keys)
    _furnish(other, models, routes, keys=bool(tenants))
    _guard(other, server, host, tenants, routes)
    other.add_middleware(TrafficMiddleware, metrics=http)
    return other


def _guard(
    app: FastAPI,
    server: ServerConfig,
    host: str,
    tenants: Tenants,
    routes: Sequence[Route],
    origins: Sequence[str] = (),
) -> None:
    posts = RoutePaths(one for one in routes if one.method == "POST")
    uploads = RoutePaths(one for one in routes if one.uploads)
    app.add_middleware(RequestGuard, server, host, tenants, KEYLESS_PATHS, posts, uploads, origins)


def _bare_app(version: str, routes: Sequence[Route], lifespan: Lifespan[FastAPI] | None) -> FastAPI:
    app = FastAPI(
        title="corepipe",
        version=version,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    http_errors.install(app, MissingRoutes(routes, INSTEAD).error)
    return app


def _furnish(app: FastAPI, models: Models, routes: Sequence[Route], *, keys: bool) -> None:
    """Adds these routes and the document that describes them to an application."""
    app.router.routes += [route.bound(models) for route in routes]
    app.state.document = openapi.ApiDocument(routes, models, keys=keys)


def _trace(app: FastAPI, server: ServerConfig, engine: EngineConfig, version: str) -> Callable[[], None]:
    """Sets up tracing if it is configured; returns what to call at the end.  Raises UserError."""
    if server.otlp_traces_endpoint is None:
        return _nothing
    try:
        from corepipe.serving.api.tracing import (  # noqa: PLC0415 -- optional, and slow to import
            SpanExporter,
            TracingMiddleware,
        )
    except ImportError as error:
        message = f"--otlp-traces-endpoint: {error.name} is missing; pip install 'corepipe[tracing]'"
        raise UserError(message, "otlp_traces_endpoint") from error
    traces = SpanExporter(server.otlp_traces_endpoint, engine, version)
    app.add_middleware(TracingMiddleware, traces=traces, paths=GENERATING_PATHS)
    return traces.close


def run_server(app: FastAPI, server: ServerConfig) -> None:
    """Serves until SIGINT or SIGTERM, then lets answers end for up to `shutdown_timeout` seconds.

    Raises UserError if the server cannot listen on its host and port, and the error of a failed engine start.
    """
    uvloop.run(serve(app, server, listen_all(server)))


async def serve(app: FastAPI, server: ServerConfig, listeners: list[socket.socket]) -> None:
    """Serves as `run_server`, in a running event loop, on the sockets from `listen_all`."""
    models: Models = app.state.models
    running = make_server(app, server)
    running.on_drain = models.drain
    running.on_late = models.abort_all
    models.on_failure = running.stop
    freeze_heap()
    await asyncio.create_task(running.serve(sockets=listeners))
    if models.failure is not None:
        raise models.failure


def make_server(app: FastAPI, server: ServerConfig) -> HttpServer:
    """Makes the HTTP server around `app`; it logs warnings and errors only."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # any client can send X-Forwarded-For
        timeout_graceful_shutdown=LAST_WORDS_SECONDS,
    )
    models: Models = app.state.models
    limit = ConnectionLimit(make_room(server.max_connections))
    models.registry.register(ConnectionMetrics(limit))
    certificate = tls_certificate(server.ssl_certfile, server.ssl_keyfile)
    tls = None if certificate is None else certificate.context
    kind = AbortableConnection if server.inject else Connection
    running = HttpServer(config, server.shutdown_timeout, limit, tls, list(open_at(server)), kind)
    running.signal_actions[signal.SIGHUP] = FileReload(server, app.state.tenants, certificate).begin
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        running.signal_actions[number] = partial(log_state, models, limit, running.server_state.tasks)
    return running


class HttpServer(uvicorn.Server):
    """An HTTP server that ends with exit code 0 at SIGINT and SIGTERM; uvicorn would raise them again.

    `on_drain` is called at once at such a signal.  While answers are under way, for up to `drain_seconds`,
    the port stays open, so that new requests get an error that names the shutdown; `on_late` aborts what is
    left then, or at a second signal.  `signal_actions`: the actions for signals that do not end the server.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_seconds: float,
        limit: ConnectionLimit,
        tls: ssl.SSLContext | None,
        ports: Sequence[ServerPort],
        kind: type[Connection] = Connection,
    ) -> None:
        super().__init__(config)
        self._limit = limit
        self._tls = tls
        self._ports = ports
        self._kind = kind
        self.on_drain: Callable[[], None] = _nothing
        self.on_late: Callable[[], None] = _nothing
        self.signal_actions: dict[signal.Signals, Callable[[], None]] = {}
        self._drain_seconds = drain_seconds
        self._signalled = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts as uvicorn does, with our class of connections.  `sockets` are those of `ports`."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(1)
        loop = asyncio.get_running_loop()
        tls, seconds = self._tls, None if self._tls is None else HEAD_SECONDS
        self.servers = []
        for port, one in zip(self._ports, sockets or [], strict=True):
            state = {**self.lifespan.state, STATE_KEY: port}
            limit = self._limit if port is ServerPort.PUBLIC else ConnectionLimit(OTHER_CONNECTIONS)
            make = partial(self._kind, self.config, self.server_state, state, limit, loop)
            self.servers.append(
                await loop.create_server(
                    make, sock=one, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=seconds
                )
            )
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_seconds
        while self.server_state.tasks and loop.time() < deadline and not self.force_exit:
            await asyncio.sleep(DRAIN_TICK_SECONDS)
        self.on_late()
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()  # uvicorn would leave it to be cancelled, with a traceback

    def stop(self) -> None:
        """Ends the server as a signal does."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Handler] = dict.fromkeys(ENDING, self.handle_exit)
        for number, act in self.signal_actions.items():
            handlers[number] = partial(_soon, loop, act)
        with answered(handlers, last=lambda: self._signalled):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._signalled = True
        self.on_drain()
        self.force_exit = self.should_exit
        self.should_exit = True


def _soon(
    loop: asyncio.AbstractEventLoop, act: Callable[[], None], _number: int, _frame: FrameType | None
) -> None:
    """Handles a signal: runs `act` in the event loop, since Python calls handlers between any two lines."""
    loop.call_soon_threadsafe(act)


def _nothing() -> None:
    """Does nothing: the default action for late answers, and for closing traces where none are made."""


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    models: Models = app.state.models
    async with contextlib.AsyncExitStack() as stack:
        for close in app.state.closers:
            stack.push_async_callback(asyncio.to_thread, close)
        if models.on_demand or any(one.ready is None for one in models.fixed):
            await stack.enter_async_context(_started(models))
        elif models.pool is not None:
            stack.push_async_callback(models.pool.end)
        stack.push_async_callback(app.state.batches.close)
        stack.push_async_callback(app.state.responses.close)
        if app.state.store.lasts:
            await app.state.batches.resume()
            await app.state.responses.resume(computation)
        yield


@asynccontextmanager
async def _started(models: Models) -> AsyncIterator[None]:
    """Starts the engines beside the open port, and closes them at the end."""
    start = asyncio.create_task(models.start())
    try:
        yield
    finally:
        start.cancel()
        await asyncio.wait([start])
        await models.close_engines()
