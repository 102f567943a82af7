"""OpenTelemetry traces: a span for each request for tokens, under its caller's W3C context.

Attributes are those of OpenTelemetry's conventions for generative AI and those that vLLM sets; the emulated
device's times are in `corepipe.device.*`.  The `OTEL_*` variables set sampling, resource and the exporter's
headers.  Needs `corepipe[tracing]`; imported only if traces are configured.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from time import time_ns

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import FleetOutput
from corepipe.serving.api.answering.submission import TRACE
from corepipe.serving.api.bodies.protocol import GenerationRequest, ModelRequest
from corepipe.serving.telemetry.observer import FinishedSequence

FLUSH_SECONDS = 2
"""The time limit for sending the last spans to a collector when the server ends."""

_W3C = TraceContextTextMapPropagator()
_HEADERS = (b"traceparent", b"tracestate")
_NANOSECONDS = 1e9

Attributes = dict[str, AttributeValue]

_DRAWN = ("stream", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "n")
"""Fields of a request that are attributes under the same names."""


class SpanExporter:
    """Exports spans in batches, by OTLP over HTTP, to `endpoint`, from a thread beside the server."""

    def __init__(self, endpoint: str, engine: EngineConfig, version: str) -> None:
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, timeout=FLUSH_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer: Tracer = self._provider.get_tracer("corepipe", version)
        self.engine = engine

    def close(self) -> None:
        """Sends the spans that are left, and waits for that."""
        self._provider.shutdown()


class TracingMiddleware:
    """ASGI middleware: opens a span, puts it into the scope, sends its context to the client, and ends it.

    It traces POSTs to `paths`.
    """

    def __init__(self, app: ASGIApp, traces: SpanExporter, paths: Container[str]) -> None:
        self._app = app
        self._traces = traces
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        trace = RequestSpan(self._traces, scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status(message["status"])
                message = {**message, "headers": [*message["headers"], *trace.headers()]}
            await send(message)

        try:
            await self._app({**scope, TRACE: trace}, receive, sending)
        except Exception as error:
            trace.fail(type(error).__name__)
            raise
        finally:
            trace.end()


class RequestSpan:
    """The span of one request.  The generation of the answer calls `answered` once, at its end."""

    def __init__(self, traces: SpanExporter, scope: Scope) -> None:
        self._tracer = traces.tracer
        self._engine = traces.engine
        self._began = time_ns()
        self._begun = False
        carrier = {n.decode(): v.decode("latin-1") for n, v in scope["headers"] if n in _HEADERS}
        self._span = self._tracer.start_span(
            f"POST {scope['path']}",
            _W3C.extract(carrier),
            SpanKind.SERVER,
            attributes=_http(scope),
            start_time=self._began,
        )

    def status(self, code: int) -> None:
        """Records the status of an answer that begins; a status from 500 is an error of the server."""
        self._begun = True
        self._span.set_attribute("http.response.status_code", code)
        if code >= 400:
            self._span.set_attribute("error.type", str(code))
        if code >= 500:
            self._span.set_status(Status(StatusCode.ERROR))

    def headers(self) -> Iterator[tuple[bytes, bytes]]:
        """Returns headers with this span's context, for the client."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._span))
        return ((name.encode(), value.encode("latin-1")) for name, value in carrier.items())

    def fail(self, kind: str) -> None:
        """Marks the span as failed by the server."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))

    def answered(
        self, operation: str, request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]
    ) -> None:
        """Records the attributes of an answer whose sequences have all ended."""
        if not self._span.is_recording():
            return
        self._span.update_name(f"{operation} {request.model}")
        self._span.set_attributes(_asked(operation, request) | _said(request, answer_id, parts))
        self._span.set_attributes(_latencies(parts[0]) | self._device(parts[0]) | _machines(parts))
        if self._begun and any(part.reason == "error" for part in parts):
            self.fail("error")  # within a stream; otherwise the status, which comes later, shows the failure
        for part in parts:
            self._phases(part)

    def end(self) -> None:
        self._span.end()

    def _device(self, part: FinishedSequence) -> Attributes:
        times = part.last and part.last.device
        if not times:
            return {}
        attributes: Attributes = {
            "corepipe.emulated": True,
            "corepipe.device.instance": self._engine.instance,
            "corepipe.device.time_in_queue": times.time_in_queue_ms / 1e3,
            "corepipe.device.time_to_first_token": times.time_to_first_token_ms / 1e3,
            "corepipe.device.e2e": times.total_ms / 1e3,
        }
        if times.time_per_output_token_ms is not None:
            attributes["corepipe.device.time_per_output_token"] = times.time_per_output_token_ms / 1e3
        return attributes

    def _phases(self, part: FinishedSequence) -> None:
        """Adds child spans for queue, prefill and decode, around the first token as the server saw it."""
        if part.first_token_seconds is None or part.queue_seconds is None or part.prefill_seconds is None:
            return
        first = self._began + int(part.first_token_seconds * _NANOSECONDS)
        scheduled = first - int(part.prefill_seconds * _NANOSECONDS)
        queued = scheduled - int(part.queue_seconds * _NANOSECONDS)
        decoded = first + int((part.decoding_seconds or 0.0) * _NANOSECONDS)
        self._child("queue", queued, scheduled)
        self._child("prefill", scheduled, first)
        if part.generated_tokens > 1:
            self._child("decode", first, decoded)

    def _child(self, name: str, start: int, end: int) -> None:
        start, end = max(start, self._began), max(end, self._began)
        child: Span = self._tracer.start_span(name, set_span_in_context(self._span), start_time=start)
        child.end(max(start, min(end, time_ns())))


def _resource(version: str) -> Resource:
    """Returns the resource from the environment; the service's default name is corepipe."""
    resource = Resource.create({SERVICE_VERSION: version})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: "corepipe"}))
    return resource


def _http(scope: Scope) -> Attributes:
    attributes: Attributes = {
        "http.request.method": scope["method"],
        "http.route": scope["path"],
        "url.path": scope["path"],
        "url.scheme": scope["scheme"],
    }
    if scope.get("server"):
        attributes["server.address"], attributes["server.port"] = scope["server"][0], scope["server"][1] or 0
    return attributes


def _asked(operation: str, request: ModelRequest) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "corepipe",
        "gen_ai.request.model": request.model or "",
    }
    return attributes | _drawn(request) if isinstance(request, GenerationRequest) else attributes


def _drawn(request: GenerationRequest) -> Attributes:
    attributes: Attributes = {f"gen_ai.request.{name}": getattr(request, name) for name in _DRAWN}
    attributes["gen_ai.request.choice.count"] = request.n
    if request.seed is not None:
        attributes["gen_ai.request.seed"] = request.seed
    if request.stops:
        attributes["gen_ai.request.stop_sequences"] = request.stops
    return attributes


def _said(request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]) -> Attributes:
    """Returns attributes of the answer and its usage; a prompt with several choices counts once."""
    prompts = parts[:: parts[0].n]
    asked = sum(part.prompt_tokens for part in prompts)
    generated = sum(part.generated_tokens for part in parts)
    return {
        "gen_ai.request.max_tokens": parts[0].max_tokens,
        "gen_ai.request.id": answer_id,
        "gen_ai.response.id": answer_id,
        "gen_ai.response.model": request.model or "",
        "gen_ai.response.finish_reasons": [part.reason for part in parts],
        "gen_ai.usage.input_tokens": asked,
        "gen_ai.usage.output_tokens": generated,
        "gen_ai.usage.cache_read.input_tokens": sum(part.cached_tokens for part in prompts),
        "gen_ai.usage.prompt_tokens": asked,
        "gen_ai.usage.completion_tokens": generated,
        "gen_ai.usage.num_sequences": len(parts),
    }


def _machines(parts: Sequence[FinishedSequence]) -> Attributes:
    """Returns a fleet's machines that computed the answer, in order, and how often one lost the request."""
    lasts = [part.last for part in parts]
    been = [last.machines for last in lasts if isinstance(last, FleetOutput) and last.machines]
    if not been:
        return {}
    return {
        "corepipe.machines": list(dict.fromkeys(node for nodes in been for node in nodes)),
        "corepipe.machines.lost": sum(len(nodes) - 1 for nodes in been),
    }


def _latencies(part: FinishedSequence) -> Attributes:
    """Returns the latencies of the first sequence, in seconds, under vLLM's names."""
    attributes: Attributes = {"gen_ai.latency.e2e": part.seconds}
    if part.first_token_seconds is not None:
        attributes["gen_ai.latency.time_to_first_token"] = part.first_token_seconds
    if part.queue_seconds is not None:
        attributes["gen_ai.latency.time_in_queue"] = part.queue_seconds
    if part.inference_seconds is not None:
        attributes["gen_ai.latency.time_in_model_prefill"] = part.prefill_seconds or 0.0
        attributes["gen_ai.latency.time_in_model_decode"] = part.decoding_seconds or 0.0
        attributes["gen_ai.latency.time_in_model_inference"] = part.inference_seconds
    return attributes
