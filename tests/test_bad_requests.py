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


def test_a_missing_field_is_named(http: httpx.Client) -> None:
    for path, body in GOOD.items():
        name = "prompt" if path == COMPLETION else "messages"
        rest = {key: value for key, value in body.items() if key != name}
        error = refusal(http.post(path, json=rest))
        assert (error["param"], error["code"]) == (name, "missing_required_parameter")
