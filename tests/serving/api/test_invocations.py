"""POST /invocations: a chat or a completion by the body's shape."""

from __future__ import annotations

import httpx
import pytest

from tests.servers import until
from tests.serving.http_support import FakeEngine, running, saying

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def url():
    with running(FakeEngine(saying("Hello world. ")), max_body_bytes=4096) as url:
        yield url


def invoke(url, body, **more):
    return httpx.post(url + "/invocations", json=body, **more)


@pytest.mark.parametrize("named", [{}, {"model": "tiny"}])
def test_the_shape_decides(url, named):
    chat = invoke(url, {"messages": MESSAGES, "max_tokens": 4, **named}).json()
    assert (chat["object"], chat["model"]) == ("chat.completion", "tiny")
    completion = invoke(url, {"prompt": "Hi", "max_tokens": 4, **named}).json()
    assert (completion["object"], completion["model"]) == ("text_completion", "tiny")


def test_the_answers_are_those_of_the_other_routes(url):
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
    assert (
        invoke(url, body).json()["choices"]
        == httpx.post(url + "/v1/chat/completions", json=body).json()["choices"]
    )


def test_streams(url):
    answer = invoke(url, {"prompt": "Hi", "max_tokens": 4, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_type"),
        (b"{}", 400, "invalid_value"),
        (b'{"prompt": "Hi", "messages": []}', 400, "invalid_value"),
        (b'{"prompt": "Hi", "model": "no"}', 404, "model_not_found"),
        (b' \n{"prompt": "Hi", "nonsense": 1}', 400, "unsupported_parameter"),
        (b'{"prompt": "' + b"x" * 5000 + b'"}', 413, "request_too_large"),
    ],
)
def test_what_is_wrong_is_refused_as_elsewhere(url, content, status, code):
    headers = {"content-type": "application/json"}
    answer = httpx.post(url + "/invocations", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_only_json_and_only_post(url):
    assert httpx.post(url + "/invocations", content=b"{}").status_code == 415
    assert httpx.get(url + "/invocations").status_code == 405


def test_keys_are_asked_for():
    with running(FakeEngine(), api_keys=("secret",)) as url:
        body = {"prompt": "Hi", "max_tokens": 1}
        assert invoke(url, body).status_code == 401
        assert invoke(url, body, headers={"authorization": "Bearer secret"}).status_code == 200


def test_a_client_that_leaves_is_forgotten():
    """A client leaves a stream after its first event; the answer would never end."""
    engine = FakeEngine(lambda submit: [*saying("on ")(submit)[:1], 3600.0])
    body = {"prompt": "Hi", "max_tokens": 200, "stream": True}
    with running(engine) as url:
        with httpx.stream("POST", url + "/invocations", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            assert engine.aborted == []
        assert until(lambda: engine.aborted == [engine.submitted[0].id])
