"""RequestGuard: which clients may send requests, from which hosts, and how much."""

from __future__ import annotations

import httpx
import pytest

from corepipe.errors import UserError
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.http.guard import read_body
from corepipe.serving.api.http.ports import check_bind, is_loopback
from corepipe.serving.api.table import KEYLESS_PATHS, ROUTES
from corepipe.serving.config import ServerConfig
from tests.serving.http_support import FakeEngine, running

KEY = "sk-secret"
BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 2}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_needs_no_key(host):
    assert is_loopback(host)
    check_bind(ServerConfig(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.example.com", ""])
def test_other_hosts_need_a_key_or_insistence(host):
    with pytest.raises(UserError, match=r"--host .* --insecure") as caught:
        check_bind(ServerConfig(host=host))
    assert caught.value.param == "host"
    check_bind(ServerConfig(host=host, api_keys=(KEY,)))
    check_bind(ServerConfig(host=host, insecure=True))


def test_the_admin_port_has_keys_of_its_own():
    check_bind(ServerConfig(admin_host="0.0.0.0"))  # there is no such port
    with pytest.raises(UserError, match=r"--admin-host 0\.0\.0\.0 .* --admin-api-key"):
        check_bind(ServerConfig(api_keys=(KEY,), admin_host="0.0.0.0", admin_port=0))
    check_bind(ServerConfig(admin_api_keys=(KEY,), admin_host="0.0.0.0", admin_port=0))


@pytest.fixture(scope="module")
def guarded():
    with running(FakeEngine(), api_keys=[KEY], max_body_bytes=2000) as url:
        yield url


@pytest.fixture(scope="module")
def open_server():
    with running(FakeEngine(), max_body_bytes=2000) as url:
        yield url


def test_every_route_but_the_public_ones_needs_a_key(guarded):
    others = {"/nowhere", "//v1/models", "/v1/models/", "/docs", "/openapi.json", "/v1/%2e%2e/health"}
    for path in {one.path for one in ROUTES} | others:
        expected = {200} if path in KEYLESS_PATHS else {401}
        assert httpx.get(guarded + path).status_code in expected, path


def test_a_refusal_says_what_is_missing(guarded):
    answer = httpx.post(guarded + "/v1/completions", json=BODY)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.json()["error"]["code"] == "missing_api_key"
    wrong = httpx.post(guarded + "/v1/completions", json=BODY, headers={"authorization": "Bearer no"})
    assert wrong.json()["error"]["code"] == "invalid_api_key"
    twice = [("authorization", f"Bearer {KEY}")] * 2
    assert httpx.post(guarded + "/v1/completions", json=BODY, headers=twice).status_code == 401
    for more in ({}, {"host": "any.example"}):
        headers = {"authorization": f"Bearer {KEY}", **more}
        assert httpx.post(guarded + "/v1/completions", json=BODY, headers=headers).status_code == 200


def test_a_key_may_come_as_x_api_key(guarded):
    """Both headers may be sent, as some clients do, if their keys are the same."""

    def ask(*headers):
        answer = httpx.post(guarded + "/v1/completions", json=BODY, headers=headers)
        return answer.status_code, answer.json().get("error", {}).get("message")

    bearer, named = ("authorization", f"Bearer {KEY}"), ("x-api-key", KEY)
    assert [ask(named)[0], ask(bearer, named)[0], ask(("X-Api-Key", KEY))[0]] == [200, 200, 200]
    wrong = (401, "Incorrect API key.")
    for named_wrongly in ("no", "", f"Bearer {KEY}"):
        assert ask(("x-api-key", named_wrongly)) == wrong
    differ = (401, "Authorization and x-api-key are not the same key.")
    assert ask(bearer, ("x-api-key", "no")) == differ
    assert ask(("authorization", "Bearer no"), named) == differ
    assert ask(("authorization", f"Basic {KEY}"), named) == differ
    assert ask(named, named) == (401, "Send one API key.")


@pytest.mark.parametrize(
    "host",
    [
        *["evil.example", "evil.example:8000", "10.0.0.1", "", "[::1]evil.example", "[::1]:80.evil.example"],
        *["localhost:80@evil.example", "evil.example@localhost", "[::1", "::1]", "localhost:80:80"],
    ],
)
def test_a_loopback_server_answers_to_loopback_names_only(open_server, host):
    answer = httpx.get(open_server + "/health", headers={"host": host})
    assert answer.status_code == 421
    assert answer.json()["error"]["code"] == "misdirected_request"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:80", "[::1]"])
def test_loopback_names(open_server, host):
    assert httpx.get(open_server + "/health", headers={"host": host}).status_code == 200


def test_bodies_that_grow_too_large_are_refused(open_server):
    headers = {"content-type": "application/json"}
    answer = httpx.post(open_server + "/v1/completions", content=iter([b" " * 1500] * 2), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("types", "encodings", "status"),
    [
        (["text/plain"], [], 415),
        (["application/x-www-form-urlencoded"], [], 415),
        ([], [], 415),
        (["application/json"], ["gzip"], 415),
        (["application/json"], ["gzip", "identity"], 415),
        (["text/plain", "application/json; charset=utf-8"], [], 415),
        (["application/JSON; charset=utf-8"], [], 400),
    ],
)
def test_other_kinds_of_body_are_refused(open_server, types, encodings, status):
    headers = [("content-type", one) for one in types] + [("content-encoding", one) for one in encodings]
    answer = httpx.post(open_server + "/v1/completions", content=b"{}", headers=headers)
    assert answer.status_code == status
    assert (answer.json()["error"]["code"] == "unsupported_media_type") == (status == 415)


async def test_a_body_is_read_to_its_end():
    messages = [{"type": "http.request", "body": part, "more_body": bool(part)} for part in (b"{", b"}", b"")]

    async def receive():
        return messages.pop(0)

    assert await read_body(receive) == b"{}"
    messages.append({"type": "http.disconnect"})
    with pytest.raises(ApiError):
        await read_body(receive)
