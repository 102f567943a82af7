"""The server as a whole: readiness, the engine's life, signals, request ids, and errors of every kind."""

from __future__ import annotations

import ast
import contextlib
import socket
import threading
from pathlib import Path

import httpx
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import failed_output
from corepipe.errors import UserError
from corepipe.serving.api.app import create_app, run_server
from corepipe.serving.api.http.ports import ServerPort, listen
from corepipe.serving.api.table import ROUTES, admin_routes, public_routes
from corepipe.serving.config import ServerConfig
from tests.api_page import PAGE, page
from tests.servers import until
from tests.serving.http_support import READY, FakeEngine, begun, running, tokenizer

ROOT = Path(__file__).parents[3]
BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 3}


def ask(url, **fields):
    return httpx.post(url + "/v1/completions", json=BODY | fields)


def test_requests_wait_for_the_engine():
    engine = FakeEngine(start_gate=threading.Event())
    with running(engine, ready=None) as url:
        assert httpx.get(url + "/health/live").status_code == 200
        loading = httpx.get(url + "/health/ready")
        assert loading.status_code == 503
        assert loading.json() == {"status": "loading", "what": "weights", "done": 0.5}
        assert loading.headers["retry-after"]
        early = ask(url)
        assert early.status_code == 503
        assert early.headers["retry-after"]
        assert early.json()["error"]["code"] == "service_unavailable"
        assert httpx.get(url + "/v1/placement").status_code == 503
        engine.start_gate.set()
        assert until(lambda: httpx.get(url + "/health").status_code == 200)
        assert ask(url).status_code == 200
        assert httpx.get(url + "/v1/placement").json() == READY.placement
    assert engine.closed


def test_a_caller_that_started_the_engine_closes_it():
    engine = FakeEngine()
    with running(engine) as url:
        assert httpx.get(url + "/health").json() == {"status": "ready"}
    assert not engine.closed


def test_a_dead_engine_is_reported():
    engine = FakeEngine()
    with running(engine) as url:
        engine.script = lambda submit: [failed_output(submit.id, "engine died")]
        engine.alive = False
        assert ask(url).status_code == 503
        assert {httpx.get(url + path).status_code for path in ("/health", "/health/live", "/ping")} == {503}


def test_models_and_version():
    with running(FakeEngine(), served_model_names=("a", "org/b")) as url:
        listed = httpx.get(url + "/v1/models").json()["data"]
        told = [(card["id"], card["root"], card["max_model_len"]) for card in listed]
        assert told == [("a", "tiny", 256), ("org/b", "tiny", 256)]
        assert httpx.get(url + "/v1/models/org/b").json() == listed[1]
        assert httpx.get(url + "/v1/models/tiny").json()["error"]["code"] == "model_not_found"
        assert ask(url, model="org/b").json()["model"] == "org/b"
        assert httpx.get(url + "/version").json() == {"version": "1.2.3"}


def test_our_own_faults_say_nothing_of_what_went_wrong(url, engine):
    engine.script = lambda submit: 1 / 0
    answer = ask(url)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "zero" not in answer.text
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("sent", ["abc-123", None, "", "x" * 129, "a b", "é"])
def test_request_ids_are_echoed_if_they_are_plain(url, sent):
    headers = {} if sent is None else {"x-request-id": sent.encode()}
    for path in ("/health", "/nope"):
        got = httpx.get(url + path, headers=headers).headers["x-request-id"]
        assert (got == sent) == (sent == "abc-123")
        assert 1 <= len(got) <= 128


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "not_found"),
        ("GET", "/" + "x" * 5000, 404, "not_found"),
        ("GET", "/v1/completions/", 404, "not_found"),
        ("GET", "//v1/models", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("TRACE", "/health", 405, "method_not_allowed"),
    ],
)
def test_errors_of_the_framework_have_the_same_shape(url, method, path, status, code):
    answer = httpx.request(method, url + path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code
    assert len(answer.content) < 1000
    assert status != 405 or answer.headers["allow"]


def test_a_port_in_use_is_the_users_to_mend():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UserError, match="--port") as caught:
            listen("127.0.0.1", taken.getsockname()[1])
        assert caught.value.param == "port"
    with pytest.raises(UserError, match="--host"):
        listen("no.such.host.invalid", 0)


def test_a_failed_start_ends_the_server():
    engine = FakeEngine(start_with=UserError("no such model", "model"))
    server = ServerConfig(port=0)
    app = create_app(engine, tokenizer(), EngineConfig(model="tiny"), server, "0")
    with pytest.raises(UserError, match="no such model"):
        run_server(app, server)
    assert engine.closed


def test_an_answer_that_outlasts_the_shutdown_is_cut():
    engine = FakeEngine(script=begun("on "))
    with contextlib.ExitStack() as client, running(engine, shutdown_timeout=0) as url:
        body = BODY | {"max_tokens": 200, "stream": True}
        answer = client.enter_context(httpx.stream("POST", url + "/v1/completions", json=body))
        lines = answer.iter_lines()
        next(lines)  # and stays, while the server ends
    assert engine.aborted == [engine.submitted[0].id]


def test_the_reference_is_up_to_date():
    assert PAGE.read_text() == page(PAGE.read_text())


def served_by(app):
    return {
        (method, route.path.replace(":path}", "}")) for route in app.router.routes for method in route.methods
    }


def of(routes):
    return {(one.method, one.path) for one in routes}


def test_every_route_is_in_the_table_and_in_the_reference():
    whole, split = (
        create_app(FakeEngine(), tokenizer(), EngineConfig(model="tiny"), config, "0")
        for config in (ServerConfig(), ServerConfig(admin_port=0))
    )
    assert served_by(whole) == of(public_routes(admin_port=False))
    assert served_by(split) == of(public_routes(admin_port=True))
    assert served_by(split.state.others[ServerPort.ADMIN]) == of(admin_routes())
    assert of(public_routes(admin_port=False)) | of(admin_routes()) == of(ROUTES)
    assert [one.path for one in ROUTES if f"`{one.method} {one.path}`" not in PAGE.read_text()] == []


def test_no_other_file_of_the_server_spells_a_path():
    """The properties of each path are in its route, and all lists of paths are derived from the routes."""
    paths = {one.path for one in ROUTES} - {"/"}
    spelled = [
        (file.name, node.value)
        for file in (ROOT / "corepipe" / "serving").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in paths
    ]
    assert sorted(path for _, path in spelled) == sorted(paths)
