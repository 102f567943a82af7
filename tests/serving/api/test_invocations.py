"""POST /invocations: a chat or a completion by the body's shape."""

from __future__ import annotations

import httpx
import pytest

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
