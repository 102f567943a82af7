"""Bad requests against a real server: error 400 in OpenAI's form that names the field; the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from corepipe.serving.api.routes.chat import ChatRequest
from corepipe.serving.api.routes.completions import CompletionRequest
from tests.servers import TINY, Served, served

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETION: {"model": "tiny", "prompt": "a", "max_tokens": 2},
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
}
REQUESTS: dict[str, type[msgspec.Struct]] = {COMPLETION: CompletionRequest, CHAT: ChatRequest}
NEUTRAL = {COMPLETION: CompletionRequest.neutral, CHAT: ChatRequest.neutral}
WRONG: tuple[object, ...] = (True, 1, -1, 0.5, 1e300, "x", [], ["x"], [[]], [None], {}, {"x": {}})
CONTEXT = 256


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY, "--served-model-name", "tiny") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


def refusal(answer: httpx.Response) -> dict[str, Any]:
    """Returns the error of a 400, which has OpenAI's four fields."""
    assert answer.status_code == 400, answer.text
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error


def still_answers(http: httpx.Client) -> None:
    for path, body in GOOD.items():
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] > 0


def test_good_requests_are_good(http: httpx.Client) -> None:
    still_answers(http)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "temperature": Infinity}',
        b'{"model": "tiny", "prompt": "a", "temperature": 1e999}',
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    refusal(http.post(path, content=body, headers={"content-type": "application/json"}))
    still_answers(http)


def fields(path: str) -> list[str]:
    return [name for name in REQUESTS[path].__struct_fields__ if name != "model"]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in GOOD for name in fields(path)])
def test_each_value_is_honoured_or_refused_by_the_field(http: httpx.Client, path: str, name: str) -> None:
    refused = 0
    for value in WRONG:
        answer = http.post(path, json={**GOOD[path], name: value})
        if answer.status_code == 200:
            continue
        refused += 1
        param = refusal(answer)["param"]
        # An answer that cannot be so long, or starts after it should end, is told by the other field.
        related = {name, "max_tokens", "prompt", "messages", "stream_options"}
        assert param is not None, value
        assert param.partition("[")[0].partition(".")[0] in related, (value, param)
    assert refused >= len(WRONG) // 2, f"{name} accepts nearly anything"
    still_answers(http)


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in GOOD for name in NEUTRAL[path]])
def test_what_is_not_honoured_is_refused_by_name(http: httpx.Client, path: str, name: str) -> None:
    error = refusal(http.post(path, json={**GOOD[path], name: {"asks": ["for", "something"]}}))
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


def test_seeds_may_be_negative_and_a_top_p_of_0_is_greedy(http: httpx.Client) -> None:
    def said(**changed: Any) -> str:
        body = GOOD[COMPLETION] | {"max_tokens": 12, "temperature": 2.0} | changed
        answer = http.post(COMPLETION, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    assert said(top_p=0, seed=1) == said(top_p=0) == said(temperature=0)
    assert said(seed=-5) == said(seed=-5) != said(seed=-6)
    assert said(seed=-(2**63)) != said(temperature=0)


def test_an_unknown_field_is_refused_by_name(http: httpx.Client) -> None:
    for path, body in GOOD.items():
        assert refusal(http.post(path, json={**body, "temprature": 0}))["param"] == "temprature"


@pytest.mark.parametrize(
    ("path", "changed", "param"),
    [
        (COMPLETION, {"prompt": ""}, "prompt"),
        (COMPLETION, {"prompt": []}, "prompt"),
        (COMPLETION, {"prompt": [[]]}, "prompt"),
        (COMPLETION, {"prompt": ["a", 1]}, "prompt"),
        (COMPLETION, {"prompt": [320]}, "prompt"),
        (COMPLETION, {"prompt": [-1]}, "prompt"),
        (COMPLETION, {"prompt": [2**40]}, "prompt"),
        (COMPLETION, {"prompt": [[5, 320]]}, "prompt"),
        (COMPLETION, {"prompt": [5] * (CONTEXT + 1)}, "prompt"),
        (COMPLETION, {"prompt": [5] * CONTEXT}, "prompt"),
        (COMPLETION, {"max_tokens": CONTEXT}, "prompt"),
        (COMPLETION, {"max_tokens": 0}, "max_tokens"),
        (COMPLETION, {"n": 33}, "n"),
        (COMPLETION, {"best_of": 2}, "best_of"),
        (COMPLETION, {"logit_bias": {"320": 1}}, "logit_bias"),
        (COMPLETION, {"logit_bias": {"x": 1}}, "logit_bias"),
        (COMPLETION, {"stop_token_ids": [320]}, "stop_token_ids"),
        (COMPLETION, {"stream_options": {"include_usage": True}}, "stream_options"),
        (COMPLETION, {"prompt": ["a"] * 129}, "prompt"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "a " * 10_000}]}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "function", "content": "a"}]}, "messages"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_this_deployment_cannot_do(
    http: httpx.Client, path: str, changed: dict[str, Any], param: str
) -> None:
    error = refusal(http.post(path, json=GOOD[path] | changed))
    assert error["param"].partition("[")[0] == param, error
    still_answers(http)


def test_a_missing_field_is_named(http: httpx.Client) -> None:
    for path, body in GOOD.items():
        name = "prompt" if path == COMPLETION else "messages"
        rest = {key: value for key, value in body.items() if key != name}
        error = refusal(http.post(path, json=rest))
        assert (error["param"], error["code"]) == (name, "missing_required_parameter")


def test_another_model_is_not_found(http: httpx.Client) -> None:
    answer = http.post(COMPLETION, json={**GOOD[COMPLETION], "model": "gpt-4"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")


def test_a_flood_of_bad_requests_leaves_nothing_behind(server: Served, http: httpx.Client) -> None:
    for _ in range(50):
        http.post(COMPLETION, json={**GOOD[COMPLETION], "temperature": -1})
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("corepipe_kv_blocks_held") == 0
    assert "Traceback" not in "".join(server.stderr)
    assert server.process.poll() is None
