"""Hostile texts and tensors against a real server of an encoder: refused, with nothing left behind."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.attacks import Watch
from tests.engine.encoder_support import LABELS
from tests.servers import Served, served
from tests.test_attacks import NO_OBJECTS
from tests.tiny_encoders import write_bert
from tests.wires import connected, exchange, post

GOLDEN = ("/v1/embeddings", {"model": "tiny", "input": "the golden cat"})
INFER = "/v2/models/tiny/infer"
LONG = "word " * 20_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Starts a server of an embedding model and one of a classifier, so that every route has a model."""
    home = tmp_path_factory.mktemp("bert")
    vectors = write_bert(home / "vectors")
    classes = write_bert(home / "classes", *LABELS, name="BertForSequenceClassification")
    also = ("--also", f"classes={classes},threads=1")
    with served(vectors, "--served-model-name", "tiny", "--threads", 1, *also) as running:
        yield running


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
def test_texts_that_are_none(watch: Watch, path: str) -> None:
    for one in TEXTS:
        body = json.dumps({"model": "tiny", "input": one}).encode()
        answer = watch.http.post(path, content=body, headers={"content-type": "application/json"})
        fine = (200,) if (path, one) == ("/pooling", "") else (400, 413, 429)  # an empty text has a vector
        assert answer.status_code in fine, (str(one)[:60], answer.text[:200])
        assert len(answer.content) < 2000


FINE: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": "tiny", "input": "a"},
    "/pooling": {"model": "tiny", "input": "a"},
    "/classify": {"model": "classes", "input": "a"},
    "/score": {"model": "tiny", "text_1": "a", "text_2": "b"},
    "/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    "/v2/rerank": {"model": "tiny", "query": "a", "documents": ["b"]},
    INFER: {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
}
"""Routes for texts, and a valid body for each."""


@pytest.mark.parametrize("path", FINE)
def test_what_is_no_object(watch: Watch, path: str) -> None:
    assert watch.http.post(path, json=FINE[path]).status_code == 200
    for name, body in NO_OBJECTS.items():
        (answer,) = exchange(watch.server.url, post(path, body))
        assert answer.status == 400, (name, answer.body)
        assert "error" in json.loads(answer.body)
        assert len(answer.body) < 2000


WRONG: list[tuple[str, dict[str, Any], str]] = [
    *[("/v1/embeddings", {"dimensions": one}, "dimensions") for one in (0, -1, 2**40, "64", 1.5, True)],
    *[("/v1/embeddings", {"encoding_format": one}, "encoding_format") for one in ("hex", 5, ["float"])],
    *[("/v1/embeddings", {"input_type": one}, "input_type") for one in ("x", 5, {})],
    ("/v1/embeddings", {"prompt_name": "x" * 100_000}, "prompt_name"),
    ("/v1/embeddings", {"user": "x" * 1_000_000}, "user"),
    *[("/v1/embeddings", {"priority": one}, "priority") for one in (2**63, "1", 0.5)],
    *[("/v1/embeddings", {"request_id": one}, "request_id") for one in ("", "a\r\nx: y", "../a", "\0")],
    *[
        ("/v1/embeddings", {"truncate_prompt_tokens": one}, "truncate_prompt_tokens")
        for one in (-2, 2**40, 129)
    ],
    ("/pooling", {"task": "generate"}, "task"),
    ("/pooling", {"embed_dtype": "float8"}, "embed_dtype"),
    ("/classify", {"use_activation": "yes"}, "use_activation"),
    ("/score", {"queries": "a"}, "documents"),
    ("/score", {"text_2": [["a"]]}, "text_2"),
    *[("/rerank", {"top_n": one}, "top_n") for one in (-1, 2**70, "1")],
    ("/rerank", {"documents": [{"text": "a", "image": "http://169.254.169.254/"}]}, "documents"),
    *[("/rerank", {one: ["title"]}, one) for one in ("rank_fields", "relevant_spans", "mm_processor_kwargs")],
]


@pytest.mark.parametrize(("path", "changed", "param"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_parameter(watch: Watch, path: str, changed: dict[str, Any], param: str) -> None:
    answer = watch.http.post(path, json=FINE[path] | changed)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param)
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "name", ["", "x" * 3000, "..%2f..%2fetc%2fpasswd", "tiny%00", "tiny/versions/2", "a"]
)
def test_another_model(watch: Watch, name: str) -> None:
    (answer,) = exchange(watch.server.url, post(f"/v2/models/{name}/infer", json.dumps(FINE[INFER]).encode()))
    assert answer.status == 404
    for path in (path for path in FINE if path != INFER):
        body = FINE[path] | {"model": name}
        assert watch.http.post(path, json=body).status_code == 404


@pytest.mark.parametrize("said", [b"Origin: https://evil.example\r\n", b"Sec-Fetch-Site: cross-site\r\n"])
def test_a_web_page_is_refused(watch: Watch, said: bytes) -> None:
    for path, body in FINE.items():
        (answer,) = exchange(watch.server.url, post(path, json.dumps(body).encode(), said))
        assert answer.status == 403


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


def test_clients_that_do_not_read(watch: Watch) -> None:
    """Their answers wait in bounded buffers; other clients are answered meanwhile."""
    body = json.dumps({**FINE["/v1/embeddings"], "input": ["the cat"] * 2048}).encode()
    with contextlib.ExitStack() as held:
        for _ in range(4):
            deaf = held.enter_context(connected(watch.server.url))
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(post("/v1/embeddings", body))
        for path, one in FINE.items():
            assert watch.http.post(path, json=one).status_code == 200


def test_clients_that_do_not_wait(watch: Watch) -> None:
    """The rest of their requests is cancelled: the server becomes idle."""
    body = json.dumps({"model": "tiny", "input": ["the cat " * 20] * 2048}).encode()
    for _ in range(8):
        with connected(watch.server.url) as left:
            left.sendall(post("/v1/embeddings", body))
