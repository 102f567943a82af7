"""Hostile directories, storms of loads and hostile names, against a real server with models on demand."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.servers import PATIENCE_SECONDS, TINY, Served, served, until

GOOD = ("good-0", "good-1", "good-2")
KEY = "sk-canary-41d0"
JSON_HEAD = "content-type: application/json\r\n"
WAITING = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models, and a hundred that look like models until they are loaded."""
    root = tmp_path_factory.mktemp("models")
    for name in GOOD:
        shutil.copytree(TINY, root / name, copy_function=os.link)
    for number in range(97):
        bad = root / f"bad-{number:02}"
        bad.mkdir()
        shutil.copy(TINY / "config.json", bad)
        if number % 3 == 0:
            (bad / "tokenizer.json").write_text("{" * 1000)
        if number % 3 == 1:
            (bad / "tokenizer.json").write_bytes(os.urandom(4096))
            (bad / "model.safetensors").write_bytes(b"\xff" * 64)
    pickled = root / "pickled"
    pickled.mkdir()
    shutil.copy(TINY / "config.json", pickled)
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    (root / "out").symlink_to(TINY)
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    flags = ("--models-dir", folder, "--max-models", 2, "--max-num-queued-reqs", WAITING, "--threads", 1)
    admin = ("--admin-port", 0, "--admin-api-key", KEY, "--api-key", "sk-user")
    with served(*flags, *admin) as one:
        yield one


def ask(server: Served, name: object, path: str = "/v1/completions") -> httpx.Response:
    body = {"model": name, "prompt": "a", "max_tokens": 2}
    return server.post(path, json=body, headers={"x-api-key": "sk-user"}, timeout=PATIENCE_SECONDS)


def admin(server: Served) -> str:
    assert until(lambda: any("control: " in line for line in server.stderr))
    line = next(line for line in server.stderr if "control: " in line)
    return line.partition("control: ")[2].split(";")[0].strip()


def test_a_storm_of_loads_is_bounded_and_loses_nobody(server: Served, folder: Path) -> None:
    """Each request is answered, or refused with the time to come back; a broken model says why each time."""
    names = [one.name for one in folder.iterdir() if one.name not in ("out", "pickled")]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = dict(zip(names, pool.map(lambda name: ask(server, name), names), strict=True))
    codes = Counter(one.status_code for one in answers.values())
    assert codes.keys() <= {200, 500, 503}, codes
    for name, answer in answers.items():
        if answer.status_code == 503:
            assert 1 <= int(answer.headers["retry-after"]) <= 30
        elif answer.status_code == 500:
            assert name not in GOOD
            assert answer.json()["error"]["code"] == "model_not_loaded"
            assert answer.headers["x-should-retry"] == "false"
    for name in GOOD:  # whatever the storm has left
        assert until(lambda name=name: ask(server, name).status_code == 200)
    assert len(psutil.Process(server.process.pid).children()) <= 6, (
        "an engine, a template and a grammar of each"
    )
    states = {one["id"]: one["status"] for one in cards(server)}
    assert sum(one["value"] == "loaded" for one in states.values()) <= 2
    tried = [name for name, one in answers.items() if one.status_code == 500]
    assert all(states[name]["failed"] and states[name]["error"] for name in tried)


def cards(server: Served) -> list[dict[str, object]]:
    found: list[dict[str, object]] = server.get("/v1/models", headers={"x-api-key": "sk-user"}).json()["data"]
    return found


def test_what_is_no_model_is_not_listed_and_the_log_says_why(server: Served) -> None:
    names = {one["id"] for one in cards(server)}
    assert not names & {"out", "pickled"}
    assert until(lambda: any("pickled is not served" in line for line in server.stderr))
    assert until(lambda: any("out is not served" in line for line in server.stderr))
    assert ask(server, "pickled").status_code == 404


NAMES = [
    "..",
    "../good-0",
    "/etc/passwd",
    "good-0/../good-0",
    "good-0\0",
    "out",
    "%2e%2e/good-0",
    "x" * 100_000,
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
def test_a_name_that_is_a_path_is_no_name(server: Served, name: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/embeddings", "/rerank"):
        assert ask(server, name, path).status_code == 404
    load = {"headers": {"x-api-key": KEY}, "timeout": PATIENCE_SECONDS}
    for path in ("/models/load", "/models/unload"):
        assert httpx.post(f"{admin(server)}{path}", json={"model": name}, **load).status_code == 404
    assert httpx.post(f"{admin(server)}/sleep", params={"model": name[:1000]}, **load).status_code == 404


@pytest.mark.parametrize("name", [None, 3, [], {}, True])
def test_a_name_that_is_no_text_is_refused(server: Served, name: object) -> None:
    assert ask(server, name).status_code == 400
    refused = httpx.post(f"{admin(server)}/models/load", json={"model": name}, headers={"x-api-key": KEY})
    assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/models/load", "/models/unload", "/sleep", "/wake_up"])
def test_control_is_for_operators_with_their_key(server: Served, path: str) -> None:
    body = {"model": GOOD[0]}
    assert server.post(path, json=body, headers={"x-api-key": "sk-user"}).status_code == 404
    for headers in ({}, {"x-api-key": "sk-user"}):
        assert httpx.post(f"{admin(server)}{path}", json=body, headers=headers).status_code == 401
    page = {"x-api-key": KEY, "origin": "https://evil.example"}
    assert httpx.post(f"{admin(server)}{path}", json=body, headers=page).status_code == 403


def test_clients_that_leave_while_they_wait_leave_nothing(server: Served) -> None:
    for name in GOOD * 2:
        body = json.dumps({"model": name, "prompt": "a", "max_tokens": 200, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: sk-user\r\n{JSON_HEAD}"
        with socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0)) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    metrics = f"{admin(server)}/metrics"
    told = {"headers": {"x-api-key": KEY}}
    assert until(lambda: "corepipe_requests_waiting_for_model 0.0" in httpx.get(metrics, **told).text)
    assert all(until(lambda name=name: ask(server, name).status_code == 200) for name in GOOD)
