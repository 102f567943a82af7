from __future__ import annotations

import httpx
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.serving.api.app import create_app
from corepipe.serving.api.http.ports import check_bind
from corepipe.serving.api.table import ROUTES
from corepipe.serving.config import ServerConfig
from tests.serving.http_support import READY, FakeEngine, begun, running_ports, tokenizer

PROBES = {"/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"}
OF_METRICS = {"/metrics", *PROBES}
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


@pytest.fixture(scope="module")
def three(engine):
    keys = {"api_keys": ("user",), "admin_api_keys": ("root",)}
    with running_ports(engine, admin_port=0, metrics_port=0, **keys) as urls:
        yield urls


def test_the_port_of_metrics_wants_no_key_and_has_nothing_else(three):
    public, admin, metrics = three
    for path in OF_METRICS:
        assert ask(metrics, path).status_code == 200, path
    told, elsewhere = ask(metrics, "/metrics").text, ask(admin, "/metrics", key="root").text
    assert [line for line in told.splitlines() if "TYPE" in line] == [
        line for line in elsewhere.splitlines() if "TYPE" in line
    ]
    for route in ROUTES:
        path = route.path.replace("{model}", "tiny")
        if path not in OF_METRICS:
            for key in (None, "user", "root"):
                assert ask(metrics, path, route.method, key).status_code == 404, path
    assert ask(public, "/metrics", key="user").status_code == 404  # it is on the admin port, as without


def test_without_an_admin_port_metrics_stay_on_the_public_one(engine):
    with running_ports(engine, metrics_port=0, api_keys=("user",)) as (public, metrics):
        assert ask(public, "/metrics").status_code == 401
        assert ask(public, "/metrics", key="user").status_code == 200
        assert ask(metrics, "/metrics").status_code == 200
        assert ask(metrics, "/v1/placement", key="user").status_code == 404
        assert ask(metrics, "/metrics", host="evil.example").status_code == 421  # as it is on loopback


def test_who_scrapes_it_takes_no_place_of_users(engine):
    """The connections of that port have a limit of their own."""
    with (
        running_ports(engine, metrics_port=0, max_connections=1) as (public, metrics),
        httpx.Client() as user,
        httpx.Client() as scraper,
    ):
        assert user.get(public + "/health").status_code == 200
        assert scraper.get(metrics + "/metrics").status_code == 200
        assert user.get(public + "/health").status_code == 200


def test_it_may_listen_for_others_without_a_key():
    check_bind(ServerConfig(metrics_host="0.0.0.0", metrics_port=0))
    with pytest.raises(UserError, match=r"^--host 0\.0\.0\.0 can be reached"):
        check_bind(ServerConfig(host="0.0.0.0", metrics_host="0.0.0.0", metrics_port=0))
