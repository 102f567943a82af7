"""Hostile texts and tensors against a real server of an encoder: refused, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.attacks import Watch
from tests.servers import Served, served
from tests.tiny_encoders import write_bert
from tests.wires import post

GOLDEN = ("/v1/embeddings", {"model": "tiny", "input": "the golden cat"})
INFER = "/v2/models/tiny/infer"
LONG = "word " * 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_bert(tmp_path_factory.mktemp("bert"))
    with served(folder, "--served-model-name", "tiny", "--threads", 1) as running:
        yield running


@pytest.fixture(scope="module")
def watching(server: Served) -> Iterator[Watch]:
    with contextlib.closing(Watch(server, golden=GOLDEN)) as watch:
        yield watch


@pytest.fixture
def watch(watching: Watch) -> Iterator[Watch]:
    """What a case needs; the invariants are checked after it."""
    yield watching
    watching.check()


TEXTS: list[Any] = [
    "",
    None,
    {},
    5,
    [],
    [[]],
    [None],
    ["a", 5],
    ["a", [5]],
    [[5], "a"],
    [[[5]]],
    [-1],
    [10**9],
    [2**70],
    [1e400],
    [True],
    ["a"] * 2049,
    [[5] * 60] * 2048 + [[5]],
    [[5] * 147] * 2048,
    [5] * 300_001,
    LONG,
    ["a", LONG],
    "\ud800",
    "x" * 3_000_000 + " a" * 100_000,
]
ROUTES = ("/v1/embeddings", "/pooling")


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_text(watch: Watch, path: str) -> None:
    for one in TEXTS:
        body = json.dumps({"model": "tiny", "input": one}).encode()
        answer = watch.http.post(path, content=body, headers={"content-type": "application/json"})
        fine = (
            (200,) if (path, one) == ("/pooling", "") else (400, 413, 429)
        )  # of no tokens there is a vector
        assert answer.status_code in fine, (str(one)[:60], answer.text[:200])
        assert len(answer.content) < 2000


ODD = ["\0", " ", "\u202e", "a\u0301" * 30, "🦄" * 60, "[CLS][SEP][PAD]", "x" * 100_000, "<|im_end|>"]


def test_what_is_an_odd_text(watch: Watch) -> None:
    for one in ODD:
        answer = watch.http.post("/v1/embeddings", json={"model": "tiny", "input": one})
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["data"]
        assert all(abs(number) < 1e6 for number in found["embedding"])


def test_comparisons_that_are_none(watch: Watch) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        *(("/score", {"text_1": "a", "text_2": one}) for one in ("", 5, [], [[]], [LONG], ["a"] * 2049)),
        *(("/rerank", {"query": "a", "documents": one}) for one in (5, [], [{}], [LONG], ["a"] * 2049)),
        ("/rerank", {"query": LONG, "documents": ["a"]}),
        ("/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 2**70}),
        ("/classify", {"input": "a"}),
    ]
    for path, body in bodies:
        answer = watch.http.post(path, json={"model": "tiny", **body})
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 400 or body.get("text_2") == ""
        assert len(answer.content) < 2000


def tensor(**more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", **more}]}


def test_tensors_that_are_bombs(watch: Watch) -> None:
    deep: Any = "a"
    for _ in range(400):
        deep = [deep]
    heads = [
        tensor(shape=[2**31 - 1, 2**31 - 1], data=["a"]),
        tensor(shape=[2**40], data=["a"]),
        tensor(shape=[1] * 400, data=["a"]),
        tensor(data=deep),
        tensor(parameters={"binary_data_size": 2**60}),
        tensor(parameters={"binary_data_size": -1}),
        tensor(shape=[4], parameters={"binary_data_size": 16}),
    ]
    for head in heads:
        said = json.dumps(head).encode()
        sent = {"inference-header-content-length": str(len(said)), "content-type": "application/octet-stream"}
        for tail in (b"", b"\xff" * 16, b"\0" * 17):
            answer = watch.http.post(INFER, content=said + tail, headers=sent)
            assert answer.status_code == 400, (head, answer.text)
            assert len(answer.content) < 2000


def test_clients_that_do_not_wait(watch: Watch) -> None:
    """The rest of what they asked for is given up: the server comes to rest."""
    body = json.dumps({"model": "tiny", "input": ["the cat " * 20] * 2048}).encode()
    where = urlsplit(watch.server.url)
    for _ in range(8):
        with socket.create_connection((where.hostname, where.port), timeout=60) as left:
            left.sendall(post("/v1/embeddings", body))
