"""Web pages: which may use the server, and the headers for their browsers."""

from __future__ import annotations

import httpx
import pytest

from corepipe.engine.config import validated
from corepipe.errors import UserError
from corepipe.serving.api.table import ROUTES
from corepipe.serving.config import ServerConfig
from tests.serving.http_support import FakeEngine, running, running_ports

KEY = "sk-secret"
UI = "https://ui.example:8443"
EVIL = "http://evil.example"
BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 2}
PREFLIGHT = {"access-control-request-method": "POST"}


@pytest.fixture
def plain(url):
    """The server with neither a key nor an allowed origin."""
    return url


@pytest.fixture(scope="module")
def guarded():
    with running(FakeEngine(), api_keys=(KEY,), allowed_origins=(UI, "vscode-file://vscode-app")) as url:
        yield url


def cors(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


FOREIGN = [
    {"origin": EVIL},
    {"origin": "null"},
    {"origin": "http://localhost:1"},
    {"origin": "https://{host}.evil.example"},
    {"origin": "file://{host}"},
    {"origin": "{host}"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "anything"},
    {"sec-fetch-site": "same-origin", "origin": EVIL},
    {"sec-fetch-site": "cross-site", "origin": "http://{host}"},
]


def spelled(headers, url):
    return {name: value.format(host=url.removeprefix("http://")) for name, value in headers.items()}


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_origin_changes_nothing(plain, headers):
    with httpx.Client(base_url=plain, headers=spelled(headers, plain)) as page:
        for path in sorted({one.path for one in ROUTES} | {"/nowhere"}):
            for method in ("POST", "DELETE"):
                answer = page.request(method, path, json=BODY)
                assert answer.status_code == 403, (method, path)
                error = answer.json()["error"]
                if isinstance(error, dict):  # the Open Inference Protocol has text alone
                    assert error["type"] == "permission_error"
                    code = None if path.startswith("/v1/messages") else "origin_not_allowed"
                    assert error.get("code") == code
                assert "x-request-id" in answer.headers
                assert not cors(answer)
        assert page.get("/v1/models").status_code == 200
    twice = [("origin", plain), ("origin", EVIL)]
    assert httpx.post(plain + "/v1/completions", json=BODY, headers=twice).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://{host}"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "same-origin", "origin": "http://{host}"},
    ],
)
def test_what_is_no_page_and_pages_of_its_own_are_let_through(plain, headers):
    answer = httpx.post(plain + "/v1/completions", json=BODY, headers=spelled(headers, plain))
    assert answer.status_code == 200
    assert not cors(answer)
    assert "vary" not in answer.headers


def test_the_port_of_a_scheme_may_be_left_out(plain):
    for origin, host in (("http://localhost", "localhost:80"), ("https://localhost:443", "LOCALHOST")):
        answer = httpx.post(plain + "/v1/completions", json=BODY, headers={"origin": origin, "host": host})
        assert answer.status_code == 200


def test_the_admin_port_is_for_no_page():
    engine = FakeEngine()
    with running_ports(engine, admin_port=0, allowed_origins=(UI,)) as (_public, admin):
        for headers in ({"origin": UI}, {"origin": EVIL}, {"sec-fetch-site": "cross-site"}):
            answer = httpx.post(admin + "/abort_requests", json={}, headers=headers)
            assert (answer.status_code, engine.abort_calls, cors(answer)) == (403, 0, {})
        preflight = httpx.options(admin + "/abort_requests", headers={"origin": UI, **PREFLIGHT})
        assert preflight.status_code == 403
        assert httpx.post(admin + "/abort_requests", json={}).status_code == 200
        assert engine.abort_calls == 1


def test_an_allowed_page_reads_its_answers_and_the_headers_that_it_needs(guarded):
    headers = {"origin": UI, "sec-fetch-site": "cross-site", "authorization": f"Bearer {KEY}"}
    for answer in (
        httpx.post(guarded + "/v1/completions", json=BODY, headers=headers),
        httpx.get(guarded + "/v1/models", headers=headers),
    ):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == UI
        assert answer.headers["vary"] == "origin"
        exposed = set(answer.headers["access-control-expose-headers"].split(", "))
        assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= exposed
        assert "access-control-allow-credentials" not in answer.headers
    refusals = [
        httpx.post(guarded + "/v1/completions", json=BODY, headers={"origin": UI}),
        httpx.post(guarded + "/v1/completions", json={}, headers=headers),
        httpx.get(guarded + "/nowhere", headers=headers),
    ]
    assert [one.status_code for one in refusals] == [401, 400, 404]
    assert {one.headers["access-control-allow-origin"] for one in refusals} == {UI}


def test_what_is_not_allowed_is_told_nothing_but_that_origins_matter(guarded):
    key = {"authorization": f"Bearer {KEY}"}
    for headers in ({}, {"origin": EVIL}, {"origin": UI.upper()}, {"origin": UI + "/"}):
        answer = httpx.get(guarded + "/v1/models", headers=key | headers)
        assert (answer.status_code, answer.headers["vary"], cors(answer)) == (200, "origin", {})
    evil = httpx.post(guarded + "/v1/completions", json=BODY, headers=key | {"origin": EVIL})
    assert evil.status_code == 403


def test_a_preflight_is_answered_without_a_key(guarded):
    for origin in (UI, "vscode-file://vscode-app"):
        wanted = "authorization, content-type,x-stainless-os"
        asked = {"origin": origin, **PREFLIGHT, "access-control-request-headers": wanted}
        answer = httpx.options(guarded + "/v1/chat/completions", headers=asked)
        assert (answer.status_code, answer.content) == (204, b"")
        assert cors(answer) == {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": wanted,
            "access-control-max-age": "600",
        }
        assert answer.headers["vary"] == "origin"
    private = {"origin": UI, **PREFLIGHT, "access-control-request-private-network": "true"}
    answer = httpx.options(guarded + "/v1/models", headers=private)
    assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("headers", ["x: y", "a b", "\xe9", ""])
def test_names_that_are_none_are_not_said_again(guarded, headers):
    asked = {"origin": UI, **PREFLIGHT, "access-control-request-headers": headers.encode("latin-1")}
    answer = httpx.options(guarded + "/v1/models", headers=asked)
    assert answer.status_code == 204
    assert "access-control-allow-headers" not in answer.headers


def test_other_preflights_are_refused_and_other_options_are_as_they_were(guarded, plain):
    for url in (guarded, plain):
        answer = httpx.options(url + "/v1/completions", headers={"origin": EVIL, **PREFLIGHT})
        assert (answer.status_code, cors(answer)) == (403, {})
    assert httpx.options(plain + "/v1/completions", headers={"origin": EVIL}).status_code == 405
    assert httpx.options(guarded + "/v1/completions").status_code == 401


def test_any_origin_where_there_are_keys():
    with running(FakeEngine(), api_keys=(KEY,), allowed_origins=("*",)) as url:
        headers = {"origin": EVIL, "sec-fetch-site": "cross-site", "x-api-key": KEY}
        answer = httpx.post(url + "/v1/completions", json=BODY, headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
        assert "access-control-allow-credentials" not in answer.headers
        preflight = httpx.options(url + "/v1/completions", headers={"origin": EVIL, **PREFLIGHT})
        assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, "*")
        assert httpx.post(url + "/v1/completions", json=BODY, headers={"origin": EVIL}).status_code == 401


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "ui.example", "https://ui.example/", "https://UI.example", "https://ui.example:443"),
        *(
            "http://a:80",
            "https://a b",
            "https://*.example",
            "",
            "https://",
            "https://u@a",
            "https://a:0",
            "https://a\n",
        ),
    ],
)
def test_settings_refuse_what_no_browser_sends(origin):
    with pytest.raises(UserError, match=r"allowed_origins: .*as browsers send it"):
        validated(ServerConfig, {"allowed_origins": (UI, origin)})


def test_settings_refuse_every_page_without_keys():
    with pytest.raises(UserError, match=r"allowed_origins: \* lets every web page use a server without"):
        validated(ServerConfig, {"allowed_origins": ("*",)})


@pytest.mark.parametrize("origin", [UI, "http://localhost:3000", "http://[::1]:3000", "app://obsidian.md"])
def test_settings_take_origins(origin):
    assert ServerConfig(allowed_origins=(origin,)).allowed_origins == (origin,)
