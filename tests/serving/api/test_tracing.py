"""Traces, as a collector receives them: a real OTLP/HTTP receiver on a socket."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from corepipe.engine.config import EngineConfig, validated
from corepipe.engine.messages import FleetOutput, Output
from corepipe.errors import UserError
from corepipe.serving.api import tracing
from corepipe.serving.api.app import create_app
from corepipe.serving.config import ServerConfig
from tests.servers import PATIENCE_SECONDS
from tests.serving.http_support import DEVICE, FakeEngine, running, tokenizer

BODY = {"model": "tiny", "prompt": "Hi there", "max_tokens": 6}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Collector:
    url: str
    paths: list[str] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        scopes = [s for r in self.requests for resource in r.resource_spans for s in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def servers(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def children(self, span: Span) -> dict[str, Span]:
        return {child.name: child for child in self.spans if child.parent_span_id == span.span_id}


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            found.paths.append(self.path)
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def traced(engine, requests, **server):
    """Returns what a collector received of these requests when the server has ended, and the answers.

    The last spans have no time limit to arrive.
    """
    with collector() as found, mock.patch.object(tracing, "FLUSH_SECONDS", PATIENCE_SECONDS):
        with running(engine, otlp_traces_endpoint=found.url, **server) as url:
            answers = [request(url) for request in requests]
        return found, answers


def post(path="/v1/completions", body=BODY, headers=None, **fields):
    return lambda url: httpx.post(url + path, json=body | fields, headers=headers or {})


def attributes(span):
    def plain(value):
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(one) for one in value.array_value.values]
        return getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in span.attributes}


PHASES = ("queue", "model_prefill", "model_decode", "model_inference")


def timed(submit):
    """Makes a script of two tokens with pauses before them."""
    last = Output(submit.id, [7], finish_reason="length", device=DEVICE)
    return [0.1, Output(submit.id, [7], cached=2), 0.05, last]


def test_a_request_is_a_span_under_its_callers():
    asked = post(
        headers={"traceparent": PARENT, "tracestate": "vendor=1"}, temperature=0.5, seed=3, stop=["zz"]
    )
    found, (answer,) = traced(FakeEngine(timed), [asked])
    assert set(found.paths) == {"/v1/traces"}
    resource = attributes(found.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "corepipe"
    (span,) = found.servers
    assert span.trace_id.hex() == PARENT.split("-")[1]
    assert span.parent_span_id.hex() == PARENT.split("-")[2]
    assert span.trace_state == "vendor=1"
    assert answer.headers["traceparent"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    assert span.name == "text_completion tiny"
    told = attributes(span)
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "corepipe",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ["zz"],
        "gen_ai.request.stream": False,
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": answer.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.prompt_tokens": answer.json()["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.request.id": answer.json()["id"],
        "gen_ai.request.n": 1,
        "corepipe.emulated": True,
        "corepipe.device.instance": "inf2.xlarge",
        "corepipe.device.time_in_queue": 0.0045,
        "corepipe.device.time_to_first_token": 0.0125,
        "corepipe.device.time_per_output_token": 0.0025,
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
    }
    assert {name: told.get(name) for name in expected} == expected
    assert 0.1 <= told["gen_ai.latency.time_to_first_token"] <= told["gen_ai.latency.e2e"]
    latency = {name: told[f"gen_ai.latency.time_in_{name}"] for name in PHASES}
    assert min(latency.values()) >= 0
    assert min(latency["model_prefill"], latency["model_decode"]) > 0
    assert latency["model_inference"] == latency["model_prefill"] + latency["model_decode"]
    assert latency["queue"] + latency["model_prefill"] <= told["gen_ai.latency.time_to_first_token"]
    assert "error.type" not in told
    phases = found.children(span)
    queue, prefill, decode = (phases[name] for name in ("queue", "prefill", "decode"))
    assert span.start_time_unix_nano <= queue.start_time_unix_nano
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano <= span.end_time_unix_nano
    for phase, name in ((prefill, "prefill"), (decode, "decode")):
        seconds = (phase.end_time_unix_nano - phase.start_time_unix_nano) / 1e9
        assert seconds == pytest.approx(latency[f"model_{name}"], abs=1e-8)


def test_the_machines_of_a_fleet_are_in_the_trace():
    def moved(submit):
        return [FleetOutput(submit.id, [7], finish_reason="length", machines=["a", "b", "a"])]

    found, _ = traced(FakeEngine(moved), [post(n=2)])
    told = attributes(found.servers[0])
    assert told["corepipe.machines"] == ["a", "b"]
    assert told["corepipe.machines.lost"] == 4
    (alone,) = traced(FakeEngine(timed), [post()])[0].servers
    assert not any("machines" in name for name in attributes(alone))


def test_the_environment_names_the_service(monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front")
    found, _ = traced(FakeEngine(), [post()], inject="503:100%")
    resource = attributes(found.requests[0].resource_spans[0].resource)
    assert (resource["service.name"], resource["service.version"]) == ("front", "1.2.3")
    assert attributes(found.servers[0])["http.response.status_code"] == 503, "injected faults are there, too"


def test_chats_streams_and_choices():
    asked = [post("/v1/chat/completions", CHAT, stream=True), post("/invocations", CHAT)]
    found, _ = traced(FakeEngine(), [*asked, post(n=2, prompt=["Hi", "Hello"])])
    chat, invoked, several = found.servers
    assert chat.name == invoked.name == "chat tiny"
    assert attributes(chat)["gen_ai.request.stream"] is True
    assert attributes(invoked)["http.route"] == "/invocations"
    told = attributes(several)
    assert told["gen_ai.usage.num_sequences"] == 4
    assert told["gen_ai.usage.output_tokens"] == 24
    assert told["gen_ai.response.finish_reasons"] == ["length"] * 4
    assert len({span.trace_id for span in found.servers}) == 3


def test_what_goes_wrong():
    def broken(submit):
        return [Output(submit.id, finish_reason="error", error="full", error_kind="overloaded")]

    found, answers = traced(
        FakeEngine(broken), [post(), post(model="no"), lambda url: httpx.get(url + "/health")]
    )
    assert [answer.status_code for answer in answers] == [429, 404, 200]
    full, unknown = found.servers
    assert attributes(full)["error.type"] == "429"
    assert attributes(full)["gen_ai.response.finish_reasons"] == ["error"]
    assert full.status.code == Status.STATUS_CODE_UNSET
    assert attributes(unknown)["error.type"] == "404"
    assert unknown.status.code == Status.STATUS_CODE_UNSET
    assert unknown.name == "POST /v1/completions"


def test_a_stream_that_fails_and_a_fault_of_ours_are_errors(capfd):
    def broken(submit):
        assert len(submit.prompt) > 2
        return [Output(submit.id, [7]), 0.01, Output(submit.id, finish_reason="error", error="lost")]

    found, answers = traced(FakeEngine(broken), [post(stream=True), post(prompt=[5])])
    assert [answer.status_code for answer in answers] == [200, 500]
    failed, fault = found.servers
    assert attributes(failed)["error.type"] == "error"
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert attributes(fault)["error.type"] == "AssertionError"
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("sent", ["garbage", "00-0-0-00", "ff" * 100])
def test_a_context_that_is_none_begins_a_trace(sent):
    found, _ = traced(FakeEngine(), [post(headers={"traceparent": sent})])
    (span,) = found.servers
    assert span.parent_span_id == b""


def test_what_its_caller_does_not_sample_is_not_sent():
    unsampled = PARENT.removesuffix("01") + "00"
    found, (answer, _) = traced(FakeEngine(), [post(headers={"traceparent": unsampled}), post()])
    assert answer.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    (span,) = found.servers
    assert span.trace_id.hex() != unsampled.split("-")[1]


def test_a_collector_that_is_gone_harms_nobody():
    with running(FakeEngine(), otlp_traces_endpoint="http://127.0.0.1:9/v1/traces") as url:
        assert post()(url).status_code == 200


def test_without_a_flag_there_is_no_trace():
    with running(FakeEngine()) as url:
        assert "traceparent" not in post(headers={"traceparent": PARENT})(url).headers
    program = "import sys, corepipe.cli.start.launch; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_endpoints():
    """One without a path gets the usual one."""
    paths = {"http://c:4318": "http://c:4318/v1/traces", "http://c:4318/": "http://c:4318/v1/traces"}
    for url, whole in (paths | {"https://c/otlp/v1/traces": "https://c/otlp/v1/traces"}).items():
        assert ServerConfig(otlp_traces_endpoint=url).otlp_traces_endpoint == whole
    for url in ("collector:4318", "grpc://collector:4317", "http://collector:4317", "http://", ""):
        with pytest.raises(UserError, match="OTLP/HTTP URL"):
            validated(ServerConfig, {"otlp_traces_endpoint": url}, str)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "corepipe.serving.api.tracing", raising=False)
    server = ServerConfig(otlp_traces_endpoint="http://c:4318")
    with pytest.raises(UserError, match=r"pip install 'corepipe\[tracing\]'"):
        create_app(FakeEngine(), tokenizer(), EngineConfig(model="tiny"), server, "0")
