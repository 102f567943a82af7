"""Paths without a route: the error names the probable route, in the form of the API that was called."""

from __future__ import annotations

import httpx
import msgspec
import openai
import pytest

from corepipe.serving.api.routes.info import Root
from tests.serving.http_support import FakeEngine, running

CHATS = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/chat/completions", CHATS),
        ("POST", "/completions", "/v1/completions"),
        ("GET", "/models", "/v1/models"),
        ("GET", "/models/tiny", "/v1/models/tiny"),
        ("POST", "/v1/v1/chat/completions", CHATS),
        ("POST", "/v1/chat/completions/v1/chat/completions", CHATS),
        ("POST", "/v1/chat/completions/chat/completions", CHATS),
        ("POST", "/v1/chat/completions/", CHATS),
        ("POST", "//v1//chat/completions", CHATS),
        ("POST", "/api/v1/chat/completions", CHATS),
        ("POST", "/openai/deployments/tiny/chat/completions", CHATS),
        ("POST", "/v1/engines/tiny/completions", "/v1/completions"),
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "/api/v1/models", "/v1/models"),
    ],
)
def test_the_right_base_url_is_named(url: str, method: str, path: str, meant: str) -> None:
    answer = httpx.request(method, url + path, json={} if method == "POST" else None)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("not_found", "invalid_request_error")
    assert error["message"].endswith(f"Use {meant}: the base URL of clients is {url}/v1.")


@pytest.mark.parametrize("path", ["/v1/models/a%0Ab", "/v2/models/%0A", "/v2/models/a%0Ab/ready"])
def test_a_name_with_a_line_break_is_no_route(url: str, path: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 404
    assert "GET /openapi.json lists the routes" in answer.text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1", "GET /v1/models lists the models"),
        ("/v1/", "GET /v1/models lists the models"),
        ("/health/", "Use /health."),
        ("/v1/health", "Use /health."),
        ("/nowhere", "GET /openapi.json lists the routes"),
        ("/api/tags", "Use /v1/models instead"),
        ("/api/chat", f"Use {CHATS} instead"),
        ("/v1/v1/responses", "Use /v1/responses"),
        ("/v1/audio/transcriptions", "Speech is not supported"),
        ("/v1/images/generations", "Making images is not supported"),
        ("/" + "x/" * 2000, "GET /openapi.json lists the routes"),
    ],
)
def test_other_paths_are_told_what_there_is(url: str, path: str, said: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 404
    assert said in answer.json()["error"]["message"]


def test_a_client_with_a_wrong_base_url_hears_of_the_right_one(url: str) -> None:
    for base in (url, url + "/v1/v1", url + CHATS):
        lost = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
        with lost as client, pytest.raises(openai.NotFoundError, match=f"base URL of clients is {url}/v1"):
            client.models.list()


def test_another_method_is_told_the_routes_own(url: str) -> None:
    for method, path, own in (
        ("PUT", CHATS, "POST, GET"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/", "GET"),
    ):
        answer = httpx.request(method, url + path)
        assert (answer.status_code, answer.headers["allow"]) == (405, own)
        assert answer.json()["error"]["message"].endswith(f"Use {own}.")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/assistants", 404),
        ("/v1/audio/transcriptions", 404),
        ("/v1/images/edits", 404),
        ("/v1/models", 405),
    ],
)
def test_a_route_is_missing_whatever_the_body(url: str, path: str, status: int) -> None:
    for body in ({"files": {"file": b"x"}}, {"content": b"x", "headers": {"content-encoding": "gzip"}}):
        answer = httpx.post(url + path, **body)  # type: ignore[arg-type]
        assert answer.status_code == status
        assert answer.json()["error"]["param"] is None


def test_a_key_is_asked_for_before_a_route_is_named() -> None:
    with running(FakeEngine(), api_keys=["k"]) as guarded:
        assert httpx.post(guarded + "/v1/assistants", files={"file": b"x"}).status_code == 401
        assert httpx.get(guarded + "/").status_code == 200


@pytest.mark.parametrize(
    ("path", "wrong"),
    [("/v1/messages", 400), ("/v1/messages/count_tokens", 400), ("/v1/messages/batches/x", 404)],
)
def test_failures_of_messages_have_that_apis_form(url: str, path: str, wrong: int) -> None:
    evil = {"host": "evil"}
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    with running(FakeEngine(), api_keys=["k"]) as guarded:
        answers = [
            (httpx.post(url + path, json={}), wrong, kinds[wrong]),
            (httpx.get(url + path), 405 if wrong == 400 else 404, kinds[wrong]),
            (httpx.get(url + path, headers=evil), 421, "invalid_request_error"),
            (httpx.post(guarded + path, json={}), 401, "authentication_error"),
            (httpx.post(guarded + path, json={}, headers={"x-api-key": "k"}), wrong, kinds[wrong]),
        ]
    for answer, status, kind in answers:
        assert answer.status_code == status
        told = answer.json()
        assert set(told) == {"type", "error"}
        assert (told["type"], told["error"]["type"]) == ("error", kind)
        assert set(told["error"]) == {"type", "message"}
        assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_page_for_browsers_and_the_same_for_programs(url: str) -> None:
    plain = httpx.get(url + "/")
    assert msgspec.json.decode(plain.content, type=Root).base_url == f"{url}/v1"
    page = httpx.get(url + "/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert f"<code>{url}/v1</code>" in page.text
    assert len(page.text) < 1000


def test_a_host_is_no_markup() -> None:
    with running(FakeEngine(), api_keys=["k"]) as url:
        head = {"host": "<script>alert(1)</script>", "accept": "text/html"}
        assert "<script>" not in httpx.get(url + "/", headers=head).text
