"""Several models behind one server: which of them answers, what they share, and the failure of one."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Ready
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.app import create_app_of, make_server
from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes
from corepipe.serving.config import ServerConfig
from tests.servers import metric_of, until
from tests.serving.http_support import (
    READY,
    FakeEngine,
    begun,
    openai_client,
    replaying,
    saying,
    serving,
    tokenizer,
)

A, B = "first", "second/one"


@contextmanager
def several(
    engines: Mapping[str, FakeEngine], ready: Ready | None = READY, **server: object
) -> Iterator[str]:
    """Runs the real app behind the real HTTP server, with a model for each name; yields its URL."""
    config = ServerConfig.model_validate({"port": 0, **server})
    services = []
    for name, engine in engines.items():
        own = config.model_copy(update={"served_model_names": (name,)})
        deployment = EngineConfig(model=f"/models/{name}", max_num_seqs=8)
        services.append(Service(engine, tokenizer(), deployment, own, "1.2.3"))  # type: ignore[arg-type]
        if ready is not None:
            services[-1].set_ready(ready)
    cassettes = None if config.record is None else ServerCassettes(config)
    app = create_app_of(Models(services), config, cassettes)
    http = make_server(app, config)
    app.state.models.on_failure = http.stop
    with serving(http, config) as (url, *_):
        yield url


def pair() -> dict[str, FakeEngine]:
    return {A: FakeEngine(saying("Hello ")), B: FakeEngine(saying("World "))}


def ask(url: str, model: str | None, **more: object) -> httpx.Response:
    named = {} if model is None else {"model": model}
    return httpx.post(f"{url}/v1/completions", json={**named, "prompt": "a", "max_tokens": 2, **more})


def test_the_body_chooses() -> None:
    engines = pair()
    with several(engines) as url:
        client = openai_client(url)
        for name, word in ((A, "Hello"), (B, "World"), (A, "Hello")):
            answer = client.completions.create(model=name, prompt="a", max_tokens=2)
            assert (answer.model, answer.choices[0].text.strip()[0]) == (name, word[0])
        chunks = client.chat.completions.create(
            model=B, messages=[{"role": "user", "content": "a"}], max_tokens=2, stream=True
        )
        assert {chunk.model for chunk in chunks} == {B}
    assert [len(engine.submitted) for engine in engines.values()] == [2, 2]


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    with several(pair()) as url:
        refused = ask(url, "third")
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"
        assert f"{A}, {B}" in refused.json()["error"]["message"]
        assert httpx.get(f"{url}/v1/models/third").status_code == 404
        assert f"{A}, {B}" in httpx.get(f"{url}/v2/models/third").json()["error"]  # as that protocol has it
        assert httpx.get(f"{url}/v1/models/{B}").json()["root"] == f"/models/{B}"
        for spelling in (B, B.replace("/", "%2F")):
            for path in (f"/v2/models/{spelling}", f"/v2/models/{spelling}/versions/1"):
                assert httpx.get(url + path).json()["name"] == B


def test_no_name_is_the_first() -> None:
    """On routes that need no model; the others say that the field is missing, as with one model."""
    engines = pair()
    with several(engines) as url:
        assert httpx.post(f"{url}/invocations", json={"prompt": "a", "max_tokens": 1}).json()["model"] == A
        assert httpx.post(f"{url}/tokenize", json={"prompt": "a"}).json()["count"] > 0
        assert ask(url, None).json()["error"]["code"] == "missing_required_parameter"
    assert not engines[B].submitted


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 3}', b"[" * 100_000, b"\xff"])
def test_a_body_that_names_nothing_readable_is_refused_as_by_one_model(body: bytes) -> None:
    head = {"content-type": "application/json"}
    with several({A: FakeEngine()}) as alone, several(pair()) as url:
        answers = [httpx.post(f"{at}/v1/completions", content=body, headers=head) for at in (alone, url)]
        assert answers[0].status_code == 400
        assert answers[0].json() == answers[1].json()


def test_all_are_listed_and_documented() -> None:
    with several(pair()) as url:
        assert [card["id"] for card in httpx.get(f"{url}/v1/models").json()["data"]] == [A, B]
        schemas = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]
        assert schemas["CompletionRequest"]["properties"]["model"]["enum"] == [A, B]
        placed = httpx.get(f"{url}/v1/placement").json()
        assert placed == {"models": [{"name": name, **READY.placement} for name in (A, B)]}


def test_metrics_are_by_model_in_one_exposition() -> None:
    with several(pair()) as url:
        ask(url, A)
        for _ in range(2):
            ask(url, B)
        text = httpx.get(f"{url}/metrics").text
        heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
        assert len(heads) == len({*heads})
        series = re.findall(r"^([^#\s]+(?:{.*})?) \S+$", text, re.MULTILINE)
        assert len(series) == len({*series})
        name = "vllm:request_success_total"
        assert [metric_of(text, name, f'model_name="{model}"') for model in (A, B)] == [1, 2]
        assert metric_of(text, "http_requests_total", "/v1/completions") == 3
        assert len(re.findall("^corepipe_device_dollars_per_hour{", text, re.MULTILINE)) == 1
        for line in text.splitlines():
            if line.startswith(("vllm:", "corepipe_core", "corepipe_engine")):
                assert "model_name=" in line, line
        neuron = httpx.get(f"{url}/metrics/neuron").text
        assert neuron.count("\nsystem_vcpu_count{") == 1
        assert all(f'runtime_tag="{model}"' in neuron for model in (A, B))


def test_a_model_has_the_metrics_that_it_has_alone() -> None:
    """The metrics are the same except for the model's label."""

    def names(text: str) -> set[str]:
        return {*re.findall(r"^# (?:TYPE|HELP) .*", text, re.MULTILINE)}

    with several({A: FakeEngine()}) as alone, several(pair()) as url:
        for path in ("/metrics", "/metrics/neuron"):
            assert names(httpx.get(alone + path).text) == names(httpx.get(url + path).text)


def test_a_key_has_one_quota_for_all_models() -> None:
    engines = {A: FakeEngine(begun("Hello")), B: FakeEngine()}
    with several(engines, api_keys=("k",), max_requests_per_key=1) as url:
        key = {"authorization": "Bearer k"}
        asked = {"model": A, "prompt": "a", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, headers=key) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            refused = httpx.post(f"{url}/v1/completions", json={"model": B, "prompt": "a"}, headers=key)
            assert refused.status_code == 429


def test_loading_is_told_until_the_last_has_loaded() -> None:
    gate = threading.Event()
    engines = {A: FakeEngine(), B: FakeEngine(start_gate=gate)}
    with several(engines, ready=None) as url:
        assert until(lambda: httpx.get(f"{url}/health").json().get("models") == {A: "ready", B: "loading"})
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert ask(url, A).status_code == 200
        refused = ask(url, B)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == f"{B}: The engine is loading."
        gate.set()
        assert until(lambda: httpx.get(f"{url}/health").status_code == 200)
        assert httpx.get(f"{url}/health").json() == {"status": "ready", "models": {A: "ready", B: "ready"}}
    assert all(engine.closed for engine in engines.values())


def test_one_that_does_not_load_ends_the_server() -> None:
    engines = {A: FakeEngine(), B: FakeEngine(start_with=RuntimeError("broken"))}
    with several(engines, ready=None) as url, pytest.raises(httpx.TransportError):
        until(lambda: httpx.get(f"{url}/health").status_code == 0)
    assert all(engine.closed for engine in engines.values())


@pytest.mark.parametrize("lost", [A, B])
def test_one_that_is_lost_leaves_the_other_serving(lost: str, caplog: pytest.LogCaptureFixture) -> None:
    engines = pair()
    (other,) = {A, B} - {lost}
    with several(engines) as url:
        engines[lost].alive = False
        engines[lost].on_failure(RuntimeError("ten engines in a row did not load"))
        health = httpx.get(f"{url}/health")
        assert health.status_code == 200
        assert health.json() == {
            "status": "degraded",
            "models": {**health.json()["models"], lost: "failed", other: "ready"},
        }
        assert httpx.get(f"{url}/health/live").status_code == 200
        refused = ask(url, lost)
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == f"{lost}: The engine has stopped."
        assert ask(url, other).status_code == 200
        assert f"model {lost} failed for good: ten engines in a row did not load" in caplog.text
        assert f"still served: {other}" in caplog.text


def test_the_last_that_is_lost_ends_the_server() -> None:
    engines = pair()
    with several(engines) as url:
        for engine in engines.values():
            engine.alive = False
            engine.on_failure(RuntimeError("lost"))
        with pytest.raises(httpx.TransportError):
            until(lambda: httpx.get(f"{url}/health").status_code == 0)


def test_what_is_said_of_one_that_is_replaced() -> None:
    engines = pair()
    with several(engines) as url:
        engines[B].alive, engines[B].restarting = False, True
        assert httpx.get(f"{url}/health").json() == {
            "status": "degraded",
            "models": {A: "ready", B: "restarting"},
        }
        assert ask(url, B).json()["error"]["message"] == f"{B}: The engine was lost; another one is loading."
        engines[A].alive, engines[A].restarting = False, True
        assert httpx.get(f"{url}/health").json()["status"] == "restarting"
        assert httpx.get(f"{url}/health").status_code == 503


def test_what_several_say_is_recorded_and_answered_again(tmp_path: Path) -> None:
    with several(pair(), record=tmp_path) as url:
        said = {name: ask(url, name, device_metrics=True).content for name in (A, B)}
    with replaying(tmp_path) as url:
        assert {name: ask(url, name, device_metrics=True).content for name in (A, B)} == said
