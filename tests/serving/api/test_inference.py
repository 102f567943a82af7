"""The Open Inference Protocol: health, metadata, tensors in JSON and in binary."""

from __future__ import annotations

import codecs
import json
import struct
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from corepipe.serving.api.routes.kserve import inference
from corepipe.serving.api.routes.kserve import metadata as inference_metadata
from tests.engine.encoder_support import (
    CLASSIFY,
    EMBED,
    LABELS,
    MOST,
    SCORE,
    TAG,
    WIDTH,
    bert,
    computed,
    computing,
)
from tests.serving.http_support import MODEL, FakeEngine, Serve, running

INFER = f"/v2/models/{MODEL}/infer"


def texts(*said: str, name: str = "text") -> dict[str, Any]:
    return {"name": name, "shape": [len(said)], "datatype": "BYTES", "data": list(said)}


def numbers(name: str, rows: list[list[int]]) -> dict[str, Any]:
    return {"name": name, "shape": [len(rows), len(rows[0])], "datatype": "INT64", "data": rows}


def infer(url: str, *inputs: dict[str, Any], **more: Any) -> httpx.Response:
    return httpx.post(url + INFER, json={"inputs": list(inputs), **more}, timeout=60)


def outputs(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in msgspec.to_builtins(told(answer).outputs)}


def told(answer: httpx.Response) -> inference.InferAnswer:
    return msgspec.json.decode(answer.content, type=inference.InferAnswer)


def refused(answer: httpx.Response, word: str) -> None:
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]


def test_health_and_metadata(serve: Serve) -> None:
    url, _ = serve(EMBED)
    assert httpx.get(url + "/v2").json()["extensions"] == ["binary_tensor_data", "model_repository"]
    assert httpx.get(url + "/v2/health/live").json() == {"live": True}
    assert httpx.get(url + "/v2/health/ready").json() == {"ready": True}
    assert httpx.get(f"{url}/v2/models/{MODEL}/ready").json() == {"name": MODEL, "ready": True}
    model = httpx.get(f"{url}/v2/models/{MODEL}").json()
    names = ["text", "input_ids", "attention_mask", "token_type_ids"]
    assert [one["name"] for one in model["inputs"]] == names
    assert model["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, WIDTH]}]
    for path in ("", "/ready"):
        other = httpx.get(f"{url}/v2/models/other{path}")
        assert other.status_code == 404
        assert "other" in other.json()["error"]


def test_a_version_may_follow_the_model(serve: Serve) -> None:
    url, _ = serve(EMBED)
    sent = {"inputs": [texts("cat")]}
    plain = httpx.post(url + INFER, json=sent).json()
    assert httpx.post(f"{url}/v2/models/{MODEL}/versions/1/infer", json=sent).json() == plain
    for path in ("", "/versions/1"):
        assert httpx.get(f"{url}/v2/models/{MODEL}{path}").json()["versions"] == ["1"]
        assert httpx.get(f"{url}/v2/models/{MODEL}{path}/ready").json() == {"name": MODEL, "ready": True}
    assert httpx.get(f"{url}/v2/models/{MODEL}/versions/2/ready").status_code == 404


MODEL_PATH = f"/v2/models/{MODEL}"


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/v2/nowhere", 404, "/openapi.json"),
        ("GET", "/v2/", 404, "Use /v2."),
        ("POST", "/v2", 405, "Use GET"),
        ("GET", "/v2/repository/index", 405, "Use POST"),
        ("POST", f"/v2/repository/models/{MODEL}/load", 404, "on the admin port"),
        ("POST", f"/v2/repository/models/{MODEL}/unload", 404, "on the admin port"),
        ("GET", "/v2/systemsharedmemory/status", 404, "shared memory extension is not supported"),
        ("POST", "/v2/cudasharedmemory/region/a/register", 404, "shared memory extension is not supported"),
        ("GET", "/v2/trace/setting", 404, "trace extension is not supported"),
        ("GET", "/v2/models/stats", 404, "statistics extension is not supported"),
        ("GET", MODEL_PATH + "/stats", 404, "statistics extension is not supported"),
        ("GET", MODEL_PATH + "/config", 404, "configuration extension is not supported"),
        ("GET", MODEL_PATH + "/versions/1/config", 404, "configuration extension is not supported"),
        ("POST", MODEL_PATH + "/generate", 404, "/v1/completions"),
        ("POST", MODEL_PATH + "/generate_stream", 404, "/v1/completions"),
        ("GET", MODEL_PATH + "/infer", 405, "Use POST"),
        ("DELETE", MODEL_PATH + "/versions/1/infer", 405, "Use POST"),
        ("POST", MODEL_PATH, 405, "Use GET"),
        ("POST", "/v2/models/other/infer", 404, "other"),
    ],
)
def test_what_is_not_there_is_told_in_the_protocols_words(
    serve: Serve, method: str, path: str, status: int, word: str
) -> None:
    answer = httpx.request(method, serve(EMBED)[0] + path, json={} if method == "POST" else None)
    assert answer.status_code == status
    assert msgspec.json.decode(answer.content, type=inference_metadata.Outcome).error.count(word) == 1


def test_whoever_refuses_under_v2_does_so_in_the_protocols_words(serve: Serve) -> None:
    url, _ = serve(EMBED)
    plain, octets = {"content-type": "text/plain"}, {"content-type": "application/octet-stream"}
    answers = [
        (415, httpx.post(url + INFER, content=b"{}", headers=plain)),
        (415, httpx.post(url + INFER, content=b"{}", headers=octets | {"content-encoding": "gzip"})),
        (421, httpx.get(url + "/v2", headers={"host": "evil"})),
        (403, httpx.post(url + INFER, json={}, headers={"origin": "https://evil.example"})),
        (400, httpx.post(url + INFER, content=b"{")),
    ]
    with running(FakeEngine(computing(EMBED)), text=bert(), task=EMBED, api_keys=["k"]) as guarded:
        answers += [(401, httpx.get(guarded + path)) for path in (f"/v2/models/{MODEL}", "/v2/nowhere")]
    with running(FakeEngine(), text=bert(), task=EMBED, inject="503:100%") as faulty:
        answers.append((503, httpx.post(faulty + INFER, json={"inputs": [texts("cat")]})))
    for status, answer in answers:
        assert answer.status_code == status
        assert msgspec.json.decode(answer.content, type=inference_metadata.Outcome).error
    cohere = httpx.post(url + "/v2/rerank", json={})
    assert cohere.json()["error"]["param"] == "query"


def test_not_ready_while_it_loads() -> None:
    with running(FakeEngine(computing(EMBED)), ready=None, text=bert(), task=EMBED) as url:
        for path in ("/v2/health/ready", f"/v2/models/{MODEL}/ready"):
            assert httpx.get(url + path).status_code in (200, 503)


def test_vectors_of_texts(serve: Serve) -> None:
    answer = infer(serve(EMBED)[0], texts("cat", "the dog"), id="mine")
    (one,) = outputs(answer).values()
    wanted = [computed(bert().encode(text), 0, EMBED)[0].tolist() for text in ("cat", "the dog")]
    assert one["shape"] == [2, WIDTH]
    assert one["data"] == [number for row in wanted for number in row]
    assert (told(answer).id, told(answer).model_name) == ("mine", MODEL)


@pytest.mark.parametrize("padded", [0, 3])
def test_token_ids_with_their_mask_and_types(serve: Serve, padded: int) -> None:
    url, engine = serve(SCORE)
    ids, at = bert().pair("cat", "dog sat")
    fill = [0] * padded
    row = [numbers("input_ids", [ids + fill]), numbers("attention_mask", [[1] * len(ids) + fill])]
    row.append(numbers("token_type_ids", [[0] * at + [1] * (len(ids) - at) + fill]))
    (one,) = outputs(infer(url, *row)).values()
    assert (engine.submitted[-1].prompt, engine.submitted[-1].second) == (ids, at)
    wanted = 1 / (1 + np.exp(-computed(ids, at, SCORE)[0, 0]))
    assert one["data"] == pytest.approx([float(wanted)], rel=1e-6)
    assert outputs(infer(url, texts("cat"), texts("dog sat", name="text_pair")))["score"] == one


def test_classes(serve: Serve) -> None:
    found = outputs(infer(serve(CLASSIFY)[0], texts("cat", "a dog")))
    assert (found["probs"]["shape"], found["label"]["shape"]) == ([2, 3], [2])
    probs = np.array(found["probs"]["data"]).reshape(2, 3)
    assert found["label"]["data"] == [LABELS[at] for at in probs.argmax(-1)]


def test_classes_of_tokens_end_with_nothing(serve: Serve) -> None:
    found = outputs(infer(serve(TAG)[0], texts("cat", "a dog sat")))
    assert found["probs"]["shape"] == [2, 5, 3]
    assert found["probs"]["data"][9:15] == [0] * 6
    assert found["label"]["data"][3:5] == ["", ""]
    assert "" not in found["label"]["data"][5:]


def binary(
    url: str, head: dict[str, Any], tail: bytes, length: object = None, **headers: str
) -> httpx.Response:
    said = json.dumps(head).encode()
    sent = {"inference-header-content-length": str(len(said) if length is None else length), **headers}
    return httpx.post(url + INFER, content=said + tail, headers=sent)


def elements(*said: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(one)) + one for one in said)


def sized(name: str, datatype: str, shape: list[int], data: bytes) -> dict[str, Any]:
    parameters = {"binary_data_size": len(data)}
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def test_binary_tensors_both_ways(serve: Serve) -> None:
    url, _ = serve(CLASSIFY)
    data = elements(b"cat", "ä dog".encode())
    head = {"inputs": [sized("text", "BYTES", [2, 1], data)], "parameters": {"binary_data_output": True}}
    answer = binary(url, head, data, **{"content-type": "application/octet-stream"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    said = json.loads(answer.content[:length])
    sizes = [one["parameters"]["binary_data_size"] for one in said["outputs"]]
    plain = outputs(infer(url, texts("cat", "ä dog")))
    probs = np.frombuffer(answer.content[length : length + sizes[0]], "<f4")
    assert probs.tolist() == plain["probs"]["data"]
    labels = answer.content[length + sizes[0] :]
    assert labels == elements(*(one.encode() for one in plain["label"]["data"]))


def test_one_output_of_two_and_how(serve: Serve) -> None:
    url, _ = serve(CLASSIFY)
    answer = infer(url, texts("cat"), outputs=[{"name": "label"}])
    assert list(outputs(answer)) == ["label"]
    wanted = [{"name": "probs", "parameters": {"binary_data": True}}, {"name": "label"}]
    answer = infer(url, texts("cat"), outputs=wanted)
    length = int(answer.headers["inference-header-content-length"])
    assert len(answer.content) == length + 12


IDS = [[2, 5, 3]]


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ([], "inputs"),
        ([texts("a", name="other")], "input_ids"),
        ([texts("a"), texts("b")], "each once"),
        ([texts("a"), numbers("input_ids", IDS)], "either"),
        ([numbers("attention_mask", [[1]])], "either"),
        ([{**texts("a"), "datatype": "INT64"}], "INT64"),
        ([{**texts("a"), "datatype": "FP64"}], "datatype"),
        ([{**texts("a"), "shape": [2]}], "elements"),
        ([{**texts("a", "b"), "shape": [1, 2]}], "shape"),
        ([{**texts("a"), "shape": []}], "shape"),
        ([{**texts("a"), "shape": [-1]}], "shape"),
        ([{**texts("a"), "data": [5]}], "BYTES"),
        ([{**texts("a"), "data": [[[[[["a"]]]]]]}], "BYTES"),
        ([{"name": "text", "shape": [0], "datatype": "BYTES", "data": []}], "shape"),
        ([{"name": "text", "shape": [1], "datatype": "BYTES"}], "binary_data_size"),
        ([{**texts("a"), "parameters": {"binary_data_size": 1}}], "must have either data or"),
        ([texts("cat " * MOST)], "maximum context length"),
        ([{**numbers("input_ids", IDS), "data": [2.5, 5, 3]}], "INT64"),
        ([{**numbers("input_ids", IDS), "data": [True, 5, 3]}], "INT64"),
        ([{**numbers("input_ids", IDS), "data": [2**63, 5, 3]}], "out of range"),
        ([numbers("input_ids", [[2, 10**6, 3]])], "token ids"),
        ([numbers("input_ids", [[-1, 5, 3]])], "token ids"),
        ([numbers("input_ids", [[5] * (MOST + 1)])], "maximum context length"),
        ([numbers("input_ids", IDS), numbers("attention_mask", [[1, 1]])], "attention_mask"),
        ([numbers("input_ids", IDS), numbers("attention_mask", [[0, 1, 1]])], "padding"),
        ([numbers("input_ids", IDS), numbers("attention_mask", [[0, 0, 0]])], "padding"),
        ([numbers("input_ids", IDS), numbers("attention_mask", [[1, 0, 1]])], "padding"),
        ([numbers("input_ids", IDS), numbers("attention_mask", [[2, 1, 0]])], "padding"),
        ([numbers("input_ids", IDS), numbers("token_type_ids", [[0, 1, 0]])], "token_type_ids"),
        ([numbers("input_ids", IDS), numbers("token_type_ids", [[0, 0, 2]])], "token_type_ids"),
        ([numbers("input_ids", [[5]] * 2049)], "2048"),
    ],
)
def test_tensors_that_are_none(serve: Serve, inputs: list[dict[str, Any]], word: str) -> None:
    refused(infer(serve(EMBED)[0], *inputs), word)


def test_integers_may_have_a_fraction_of_zero_and_a_byte_order_mark_is_no_tensor(serve: Serve) -> None:
    url, _ = serve(EMBED)
    plain = outputs(infer(url, numbers("input_ids", IDS)))
    told = {**numbers("input_ids", [[2.0, 5.0, 3e0]]), "shape": [1.0, 3.0]}
    assert outputs(infer(url, told)) == plain
    one = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}}
    sent = codecs.BOM_UTF8 + json.dumps({"inputs": [one]}).encode()
    headers = {"content-type": "application/json", "inference-header-content-length": str(len(sent))}
    answer = httpx.post(url + INFER, content=sent + elements(b"cat"), headers=headers)
    assert outputs(answer) == outputs(infer(url, texts("cat")))


@pytest.mark.parametrize(
    "more",
    [
        {"outputs": [{"name": "other"}]},
        {"outputs": [{"name": "embedding", "parameters": {"classification": 2}}]},
        {"parameters": {"timeout": 5}},
        {"parameters": {"truncate_prompt_tokens": 0}},
        {"parameters": {"truncate_prompt_tokens": MOST + 1}},
        {"sequence": 1},
    ],
)
def test_what_is_asked_of_them_and_not_done(serve: Serve, more: dict[str, Any]) -> None:
    assert infer(serve(EMBED)[0], texts("a"), **more).status_code == 400


@pytest.mark.parametrize(
    ("tail", "size", "word"),
    [
        (b"", 4, "more than follow"),
        (elements(b"cat"), 4, "longer than the tensor"),
        (elements(b"cat"), 6, "longer than the tensor"),
        (elements(b"cat") + b"x", 7, "follow the last"),
        (elements(b"\xff"), 5, "UTF-8"),
        (b"\xff\xff\xff\xff", 4, "longer than the tensor"),
        (b"", 0, "elements"),
    ],
)
def test_bytes_that_are_no_tensors(serve: Serve, tail: bytes, size: int, word: str) -> None:
    one = {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}}
    refused(binary(serve(EMBED)[0], {"inputs": [one]}, tail), word)


@pytest.mark.parametrize("length", ["x", "-1", "999999", "99999999999", ""])
def test_lengths_that_are_none(serve: Serve, length: str) -> None:
    refused(binary(serve(EMBED)[0], {"inputs": [texts("a")]}, b"", length), "Length")


def test_other_types_of_bodies_are_refused(serve: Serve) -> None:
    url, _ = serve(EMBED)
    content = json.dumps({"inputs": [texts("a")]})
    assert httpx.post(url + INFER, content=content).status_code == 200  # as Triton's client sends it
    pages = {"origin": "https://evil.example"}
    assert httpx.post(url + INFER, content=content, headers=pages).status_code == 403
    assert httpx.post(url + INFER, content=content, headers={"content-type": "text/plain"}).status_code == 415
    assert httpx.post(url + "/v1/embeddings", content=content).status_code == 415
    answer = binary(url, {"inputs": [texts("a")]}, b"", **{"content-type": "text/plain"})
    assert answer.status_code == 415


def test_of_what_generates_there_are_no_tensors() -> None:
    with running(FakeEngine()) as url:
        assert httpx.get(f"{url}/v2/models/{MODEL}").json()["inputs"] == []
        refused(infer(url, texts("a")), "--task generate")


def test_texts_are_cut_where_that_is_asked_for(serve: Serve) -> None:
    url, engine = serve(EMBED)
    outputs(infer(url, texts("cat " * MOST), parameters={"truncate_prompt_tokens": -1}))
    assert len(engine.submitted[-1].prompt) == MOST
