"""The HTTP server: routes, guards and the life of the engine behind them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.routing import Route

from corepipe.errors import UserError
from corepipe.models.tokenizer import Tokenizer
from corepipe.serving import http_errors
from corepipe.serving.config import EngineConfig, ServerConfig
from corepipe.serving.faults import Draw
from corepipe.serving.inject import AbortableProtocol, Inject, InjectedFaults
from corepipe.serving.limits import Guard
from corepipe.serving.messages import Ready
from corepipe.serving.routes.chat import Chat
from corepipe.serving.routes.completions import Completions
from corepipe.serving.routes.info import health_router, info_router
from corepipe.serving.routes.invocations import Invocations
from corepipe.serving.routes.service import Service
from corepipe.serving.routes.tokens import token_router
from corepipe.serving.routes.traffic import HttpMetrics, Traffic

if TYPE_CHECKING:  # the client's module loads the engine's, which may run in another process
    from corepipe.serving.client import EngineClient

DRAIN_TICK_SECONDS = 0.05
"""Between two looks at what is under way."""

LAST_WORDS_SECONDS = 2
"""Left to answers that are given up at a shutdown, to tell their clients so."""

PATHS = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/placement",
        "/invocations",
        "/tokenize",
        "/detokenize",
        "/health",
        "/health/live",
        "/health/ready",
        "/ping",
        "/version",
        "/metrics",
        "/metrics/neuron",
    }
)


def create_app(
    client: EngineClient,
    tokenizer: Tokenizer,
    engine: EngineConfig,
    server: ServerConfig,
    version: str,
    ready: Ready | None = None,
) -> FastAPI:
    """The ASGI application of one deployment; its `state.service` is the `Service`.

    Who starts the engine: with `ready` the caller has started it, and closes it.  Without, the application's
    lifespan starts it beside the open port (requests get 503 until it has loaded) and closes it at the end;
    `run_server` then raises what made the start fail.  Raises UserError for a bad chat template.
    """
    if server.chat_template is not None:
        tokenizer = tokenizer.with_chat_template(server.chat_template)
    service = Service(client, tokenizer, engine, server, version)
    if ready is not None:
        service.set_ready(ready)
    app = FastAPI(
        title="corepipe",
        version=version,
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    http_errors.install(app)
    completions, chat = Completions(service), Chat(service)
    app.router.routes.append(Route("/v1/completions", completions, methods=["POST"]))
    app.router.routes.append(Route("/v1/chat/completions", chat, methods=["POST"]))
    app.router.routes.append(Route("/invocations", Invocations(service, chat, completions), methods=["POST"]))
    for router in (info_router(service), health_router(service), token_router(service)):
        app.include_router(router)
    if server.inject:
        faults = InjectedFaults(service.metrics.registry)
        app.add_middleware(Inject, draw=Draw(server.inject, engine.seed), counts=faults)
    app.state.close = _trace(app, server, engine, version)
    app.add_middleware(Guard, config=server)
    app.add_middleware(Traffic, metrics=HttpMetrics(service.metrics.registry, PATHS))
    return app


def _trace(app: FastAPI, server: ServerConfig, engine: EngineConfig, version: str) -> Callable[[], None]:
    """Traces requests where they are to be traced; what to call at the end.  Raises UserError."""
    if server.otlp_traces_endpoint is None:
        return _nothing
    try:
        from corepipe.serving.tracing import Traces, Tracing  # noqa: PLC0415 -- optional, and heavy
    except ImportError as error:
        message = f"--otlp-traces-endpoint: {error.name} is missing; pip install 'corepipe[tracing]'"
        raise UserError(message, "otlp_traces_endpoint") from error
    traces = Traces(server.otlp_traces_endpoint, engine, version)
    app.add_middleware(Tracing, traces=traces)
    return traces.close


def run_server(app: FastAPI, server: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM, then let answers end for up to `shutdown_timeout` seconds.

    Raises UserError if the port or the host cannot be had, and whatever made the engine's start fail.
    """
    uvloop.run(serve(app, server, listen(server.host, server.port)))


async def serve(app: FastAPI, server: ServerConfig, listener: socket.socket) -> None:
    """As `run_server`, in a running loop, on a socket from `listen`."""
    service: Service = app.state.service
    running = make_server(app, server)
    running.on_drain = service.drain
    running.on_late = service.client.abort_all
    service.on_failure = running.stop
    gc.collect()
    gc.freeze()  # what is loaded by now stays: let the collector not walk it in the middle of requests
    await running.serve(sockets=[listener])
    if service.failure is not None:
        raise service.failure


def make_server(app: FastAPI, server: ServerConfig) -> Server:
    """The HTTP server around `app`; it logs warnings and errors only."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=AbortableProtocol if server.inject else "httptools",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_WORDS_SECONDS,
    )
    return Server(config, server.shutdown_timeout)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.  Raises UserError if the port is taken or the host is not ours."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=2048)
    except socket.gaierror:
        raise UserError(f"--host {host} is not a known address", "host") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot listen on {host}:{port} ({reason}): choose another --port", "port") from None


class Server(uvicorn.Server):
    """Ends with exit code 0 at SIGINT and SIGTERM: uvicorn would raise them again after the shutdown.

    `on_drain` is told of the signal at once.  While answers are under way, for up to `drain_seconds`, the
    port stays open, so that whoever asks is told to go elsewhere; `on_late` is to end what is left then, or
    at a second signal.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float) -> None:
        super().__init__(config)
        self.on_drain: Callable[[], None] = _nothing
        self.on_late: Callable[[], None] = _nothing
        self._drain_seconds = drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_drain()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_seconds
        while self.server_state.tasks and loop.time() < deadline and not self.force_exit:
            await asyncio.sleep(DRAIN_TICK_SECONDS)
        self.on_late()
        await super().shutdown(sockets)

    def stop(self) -> None:
        """End as at a signal."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with contextlib.ExitStack() as stack:
            for number in (signal.SIGINT, signal.SIGTERM):
                previous = signal.signal(number, self.handle_exit)
                stack.callback(signal.signal, number, previous)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.on_drain()
        self.force_exit = self.should_exit
        self.should_exit = True


def _nothing() -> None:
    """What ends late answers where nobody runs the server through `serve`, and traces where none are made."""


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, app.state.close)
        if service.ready is None:
            await stack.enter_async_context(_started(service))
        yield


@asynccontextmanager
async def _started(service: Service) -> AsyncIterator[None]:
    """The engine starts beside the open port, and is closed at the end."""
    start = asyncio.create_task(service.start())
    try:
        yield
    finally:
        start.cancel()
        await asyncio.wait([start])
        await service.client.close()
