from __future__ import annotations

import httpx
import pytest

from corepipe.serving.api.app import create_app
from corepipe.serving.config import EngineConfig, ServerConfig
from tests.serving.http_support import READY, FakeEngine, begun, running_ports, tokenizer

ADMIN_ALONE = {"/metrics": "GET", "/v1/placement": "GET", "/abort_requests": "POST"}
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 200}


@pytest.fixture(scope="module")
def engine():
    return FakeEngine(begun("a b"))


@pytest.fixture(scope="module")
def ports(engine):
    with running_ports(engine, admin_port=0, api_keys=("user",), admin_api_keys=("root",)) as urls:
        yield urls


def ask(url, path, method="GET", key=None, **headers):
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    more = {"json": {}} if method == "POST" else {}
    return httpx.request(method, url + path, headers=headers, **more)


@pytest.mark.parametrize("path", ADMIN_ALONE)
def test_what_is_for_those_who_run_it_is_on_their_port_alone(ports, path):
    public, admin = ports
    method = ADMIN_ALONE[path]
    assert ask(public, path, method, "user").status_code == 404
    assert ask(public, path, method, "root").status_code == 401
    assert ask(admin, path, method, "user").status_code == 401
    assert ask(admin, path, method).status_code == 401
    assert ask(admin, path, method, "root").status_code == 200


def test_a_host_header_does_not_choose_the_port(ports):
    public, admin = ports
    host = admin.removeprefix("http://")
    assert ask(public, "/metrics", key="user", host=host).status_code == 404


def test_models_are_not_on_the_admin_port_and_probes_are_on_both(ports):
    _, admin = ports
    assert ask(admin, "/v1/models", key="root").status_code == 404
    assert [ask(url, "/health").status_code for url in ports] == [200, 200]


def test_abort_requests_ends_every_answer(ports, engine):
    public, admin = ports
    key = {"authorization": "Bearer user"}
    with httpx.stream(
        "POST", public + "/v1/completions", json=BODY | {"stream": True}, headers=key
    ) as answer:
        next(answer.iter_lines())
        assert ask(admin, "/abort_requests", "POST", "root").json() == {"aborted": True}
    assert engine.submitted[-1].id in engine.aborted


def test_without_an_admin_port_there_is_no_control(engine):
    app = create_app(engine, tokenizer(), EngineConfig(model="tiny"), ServerConfig(), "1", READY)
    paths = {route.path for route in app.router.routes}
    assert "/metrics" in paths
    assert "/abort_requests" not in paths
