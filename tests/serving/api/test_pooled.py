"""Embeddings, classes, scores and rankings over HTTP: bodies, limits, answers and errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from corepipe.engine.messages import Output
from corepipe.models.tasks import TaskInfo
from corepipe.serving.api.answering.service import GENERATES
from corepipe.serving.api.answering.texts import MAX_ENTRIES, MAX_INPUT_TOKENS
from corepipe.serving.api.routes import classify, embeddings, pooling, rerank, score
from tests.engine.encoder_support import (
    ANY_LENGTH,
    CLASSIFY,
    EMBED,
    LABELS,
    MATRYOSHKA,
    MOST,
    PROMPTS,
    RAW,
    SCORE,
    TAG,
    WIDTH,
    bert,
    computed,
    computing,
)
from tests.servers import metric_of, until
from tests.serving.http_support import FOREVER, MODEL, FakeEngine, Serve, openai_client, replaying, running
from tests.wires import connected
from tests.wires import post as request


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json={"model": MODEL, **body}, timeout=60)


def told(answer: httpx.Response, kind: Any) -> Any:
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=kind)
    return answer.json()


def refused(answer: httpx.Response, param: str) -> str:
    """Returns the message of an error 400 that names the field."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param, error
    return str(error["message"])


def vector(text: str, task: TaskInfo = EMBED) -> list[float]:
    return computed(bert().encode(text), 0, task)[0].tolist()


# Embeddings


def test_vectors_by_the_openai_client_in_both_encodings(serve: Serve) -> None:
    url, _ = serve(EMBED)
    texts = ["the cat sat", "a dog"]
    count = sum(len(bert().encode(text)) for text in texts)
    with openai_client(url) as client:
        for more in ({}, {"encoding_format": "float"}):  # the client asks for base64 if nobody says
            answer = client.embeddings.create(model=MODEL, input=texts, **more)
            assert [one.embedding for one in answer.data] == [vector(text) for text in texts]
            assert [one.index for one in answer.data] == [0, 1]
            assert answer.usage.prompt_tokens == answer.usage.total_tokens == count
            assert answer.model == MODEL


def test_the_openai_client_takes_what_it_has_asked_for_also_where_it_is_strict(serve: Serve) -> None:
    """Without a format the package requests base64 (little-endian fp32), and in strict mode it then refuses a
    string."""
    url, _ = serve(EMBED)
    with openai_client(url, _strict_response_validation=True) as strict:
        (one,) = strict.embeddings.create(model=MODEL, input="cat", encoding_format="float").data
        raw = strict.embeddings.with_raw_response.create(model=MODEL, input="cat").http_response
    assert one.embedding == vector("cat")
    assert json.loads(raw.request.content)["encoding_format"] == "base64"
    sent = base64.b64decode(raw.json()["data"][0]["embedding"])
    assert np.frombuffer(sent, "<f4").tolist() == vector("cat")


def test_token_ids_are_taken_as_they_are(serve: Serve) -> None:
    url, engine = serve(EMBED)
    ids = bert().encode("the cat")
    for sent in (ids, [ids], [ids, ids]):
        data = told(post(url, "/v1/embeddings", input=sent), embeddings.Embeddings)["data"]
        assert {tuple(one["embedding"]) for one in data} == {tuple(vector("the cat"))}
        assert engine.submitted[-1].prompt == ids


def test_vectors_that_may_be_cut_are_normalised_anew(serve: Serve) -> None:
    url, _ = serve(MATRYOSHKA)
    answer = post(url, "/v1/embeddings", input="cat", dimensions=4, prompt_name="")
    (one,) = told(answer, embeddings.Embeddings)["data"]
    whole = np.array(vector("cat", MATRYOSHKA)[:4])
    assert one["embedding"] == pytest.approx((whole / np.linalg.norm(whole)).tolist(), rel=1e-6)
    assert "4, 8" in refused(post(url, "/v1/embeddings", input="cat", dimensions=5), "dimensions")
    assert str(WIDTH) in refused(post(url, "/v1/embeddings", input="cat", dimensions=17), "dimensions")


def test_a_vector_may_be_cut_to_one_number(serve: Serve) -> None:
    url, _ = serve(ANY_LENGTH)
    for form in ("float", "base64"):
        answer = post(url, "/v1/embeddings", input="cat", dimensions=1, encoding_format=form)
        (one,) = told(answer, embeddings.Embeddings)["data"]
        told_as = one["embedding"]
        numbers = np.frombuffer(base64.b64decode(told_as), "<f4") if form == "base64" else told_as
        assert [abs(number) for number in numbers] == [1]
    assert refused(post(url, "/v1/embeddings", input="cat", dimensions=0), "dimensions")


def test_other_vectors_may_not_be_cut(serve: Serve) -> None:
    """OpenAI's older models refuse the field, too."""
    url, _ = serve(EMBED)
    for wanted in (1, 4):
        answer = post(url, "/v1/embeddings", input="cat", dimensions=wanted)
        assert "cannot be cut" in refused(answer, "dimensions")
    (one,) = told(post(url, "/v1/embeddings", input="cat", dimensions=WIDTH), embeddings.Embeddings)["data"]
    assert one["embedding"] == vector("cat")


def test_length_one_on_request(serve: Serve) -> None:
    url, _ = serve(RAW)
    raw = np.array(vector("cat", RAW))
    for asked, wanted in ((None, raw), (False, raw), (True, raw / np.linalg.norm(raw))):
        answer = post(url, "/v1/embeddings", input="cat", use_activation=asked)
        (one,) = told(answer, embeddings.Embeddings)["data"]
        assert one["embedding"] == pytest.approx(wanted.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "before"),
    [
        ({}, PROMPTS["document"]),
        ({"prompt_name": ""}, ""),
        ({"prompt_name": "query"}, PROMPTS["query"]),
        ({"input_type": "search_query"}, PROMPTS["query"]),
        ({"input_type": "passage"}, PROMPTS["document"]),
    ],
)
def test_prompts_go_before_texts(serve: Serve, asked: dict[str, str], before: str) -> None:
    url, engine = serve(MATRYOSHKA)
    told(post(url, "/v1/embeddings", input="cat", **asked), embeddings.Embeddings)
    assert engine.submitted[-1].prompt == bert().encode(before + "cat")


def test_what_is_odd_is_embedded(serve: Serve) -> None:
    url, _ = serve(EMBED)
    odd = ["   ", "\0", "中" * 40, "x" * 100_000, "🦄 [CLS] [MASK]"]
    data = told(post(url, "/v1/embeddings", input=odd), embeddings.Embeddings)["data"]
    assert [one["embedding"] for one in data] == [vector(text) for text in odd]


def test_as_many_entries_as_may_be_keep_their_order(serve: Serve) -> None:
    url, engine = serve(EMBED)
    texts = [f"{chr(97 + at % 26)} {chr(97 + at // 26 % 26)}" for at in range(MAX_ENTRIES)]
    data = told(post(url, "/v1/embeddings", input=texts), embeddings.Embeddings)["data"]
    assert [one["index"] for one in data] == list(range(MAX_ENTRIES))
    assert [one["embedding"] for one in data] == [vector(text) for text in texts]
    assert len(engine.submitted) == MAX_ENTRIES


@pytest.mark.parametrize(("most", "side"), [(5, "right"), (5, "left"), (-1, "right"), (1, "right")])
def test_texts_are_cut_where_that_is_asked_for(serve: Serve, most: int, side: str) -> None:
    url, engine = serve(EMBED)
    text = "cat dog " * MOST
    asked = {"truncate_prompt_tokens": most, "truncation_side": side}
    told(post(url, "/v1/embeddings", input=text, **asked), embeddings.Embeddings)
    wanted = bert().cut(bert().encode(text), MOST if most == -1 else most, side, framed=True)
    assert engine.submitted[-1].prompt == wanted
    assert len(wanted) == (MOST if most == -1 else most)


def test_what_asks_for_nothing_is_taken(serve: Serve) -> None:
    more = {"user": "me", "embed_dtype": "float32", "endianness": "little", "dimensions": None}
    told(post(serve(EMBED)[0], "/v1/embeddings", input="a", **more), embeddings.Embeddings)


def test_the_devices_times(serve: Serve) -> None:
    answer = post(serve(EMBED)[0], "/v1/embeddings", input="a", device_metrics=True)
    found = told(answer, embeddings.Embeddings)["corepipe"]
    assert (found["emulated"], found["time_to_first_token_ms"]) == (True, 12.5)


def test_numbers_that_are_none_are_an_error(serve: Serve) -> None:
    url, engine = serve(EMBED)
    bad = np.array([1, float("nan")], np.float32).tobytes()
    engine.script = lambda submit: [Output(submit.id, finish_reason="stop", values=bad)]
    answer = post(url, "/v1/embeddings", input="a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "logits_overflow")


def test_one_failure_ends_the_request(serve: Serve) -> None:
    url, engine = serve(EMBED)
    full = {"finish_reason": "error", "error": "full", "error_kind": "overloaded", "retry_seconds": 3}
    script = engine.script

    def failing(submit: Any) -> list[Any]:
        number = submit.id.rsplit("-")[-1]
        return {"1": [Output(submit.id, **full)], "2": [FOREVER]}.get(number) or list(script(submit))

    engine.script = failing
    answer = post(url, "/v1/embeddings", input=["a", "b", "c"])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert [name.rsplit("-")[-1] for name in engine.aborted] == ["2"]


def test_a_client_that_goes_away_is_noticed(serve: Serve) -> None:
    url, engine = serve(EMBED)
    engine.script = lambda _submit: [FOREVER]
    with connected(url) as leaving:
        body = json.dumps({"model": MODEL, "input": ["a", "b"]}).encode()
        leaving.sendall(request("/v1/embeddings", body))
        assert until(lambda: len(engine.submitted) == 2)
        assert engine.aborted == []
    assert until(lambda: len(engine.aborted) == 2)


def test_the_metrics_count_texts(serve: Serve) -> None:
    url, _ = serve(RAW)

    def answered() -> float:
        text = httpx.get(url + "/metrics").text
        return metric_of(text, "vllm:request_success_total", 'finished_reason="stop"')

    before = answered()
    told(post(url, "/v1/embeddings", input=["a", "b"]), embeddings.Embeddings)
    assert answered() == before + 2


EMBEDDINGS, SCORES, RANKS = "/v1/embeddings", "/score", "/rerank"
CUT = "truncate_prompt_tokens"
TEXT = {"input": "a"}
PAIR = {"text_1": "a", "text_2": "b"}
RANK = {"query": "a", "documents": ["b"]}
REFUSED: list[tuple[TaskInfo, str, dict[str, Any], str]] = [
    *((EMBED, EMBEDDINGS, {"input": sent}, "input") for sent in ("", [], ["a", ""], [-1], [10**6], [2**63])),
    *((EMBED, EMBEDDINGS, {"input": sent}, "input") for sent in ([[]], [[5], []], [[5], [67]], [0.5])),
    *((EMBED, EMBEDDINGS, {"input": sent}, "input") for sent in (["a", 5], ["a", [5]], [5, [5]], None)),
    (EMBED, EMBEDDINGS, {"input": {"text": "a"}}, "input"),
    (EMBED, EMBEDDINGS, {"input": ["a"] * (MAX_ENTRIES + 1)}, "input"),
    (EMBED, EMBEDDINGS, {"input": [[5] * 60] * (MAX_INPUT_TOKENS // 60 + 1)}, "input"),
    (EMBED, EMBEDDINGS, {"input": "cat " * MOST}, "input"),
    (EMBED, EMBEDDINGS, {"input": ["a", "cat " * MOST]}, "input"),
    (EMBED, EMBEDDINGS, {"input": "cat " * 25_000}, "input"),
    *((EMBED, EMBEDDINGS, {**TEXT, CUT: most}, CUT) for most in (0, MOST + 1, -2)),
    (EMBED, EMBEDDINGS, {**TEXT, "encoding_format": "bytes"}, "encoding_format"),
    (EMBED, EMBEDDINGS, {**TEXT, "embed_dtype": "float16"}, "embed_dtype"),
    (EMBED, EMBEDDINGS, {**TEXT, "endianness": "big"}, "endianness"),
    (EMBED, EMBEDDINGS, {**TEXT, "messages": [{"role": "user", "content": "a"}]}, "messages"),
    (EMBED, EMBEDDINGS, {**TEXT, "normalize": True}, "normalize"),
    (EMBED, EMBEDDINGS, {**TEXT, "dimensions": 0}, "dimensions"),
    (EMBED, EMBEDDINGS, {**TEXT, "stream": True}, "stream"),
    (EMBED, EMBEDDINGS, {**TEXT, "use_activation": False}, "use_activation"),
    (EMBED, EMBEDDINGS, {**TEXT, "input_type": "query"}, "input_type"),
    (MATRYOSHKA, EMBEDDINGS, {**TEXT, "prompt_name": "other"}, "prompt_name"),
    (CLASSIFY, "/pooling", {**TEXT, "dimensions": 2}, "dimensions"),
    (CLASSIFY, "/pooling", {**TEXT, "task": "embed"}, "task"),
    (SCORE, SCORES, {}, "text_1"),
    (SCORE, SCORES, {"text_1": "a"}, "text_2"),
    (SCORE, SCORES, {"text_1": "a", "documents": "b"}, "documents"),
    (SCORE, SCORES, {"queries": ["a", "b"], "documents": ["c"]}, "documents"),
    (SCORE, SCORES, {"queries": ["a", "b"], "documents": ["c", "d", "e"]}, "documents"),
    (SCORE, SCORES, {"queries": [], "documents": ["c"]}, "queries"),
    (SCORE, SCORES, {**PAIR, "text_2": []}, "text_2"),
    (SCORE, SCORES, {**PAIR, "text_2": ["b"] * (MAX_ENTRIES + 1)}, "text_2"),
    (SCORE, SCORES, {**PAIR, "text_2": ["b", "cat " * MOST]}, "text_2"),
    (SCORE, SCORES, {**PAIR, "text_1": [5]}, "text_1"),
    (SCORE, RANKS, {"query": "a"}, "documents"),
    (SCORE, RANKS, {"documents": ["a"]}, "query"),
    (SCORE, RANKS, {**RANK, "documents": []}, "documents"),
    (SCORE, RANKS, {**RANK, "documents": [{"title": "b"}]}, "documents"),
    (SCORE, RANKS, {**RANK, "documents": [{"text": "b", "title": "c"}]}, "documents"),
    (SCORE, RANKS, {**RANK, "rank_fields": ["c"]}, "rank_fields"),
    (SCORE, RANKS, {**RANK, "top_n": -1}, "top_n"),
    (SCORE, RANKS, {**RANK, "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
]


@pytest.mark.parametrize(("task", "path", "body", "param"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_cannot_be_is_refused_by_its_name(
    serve: Serve, task: TaskInfo, path: str, body: dict[str, Any], param: str
) -> None:
    url, engine = serve(task)
    answer = post(url, path, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].partition("[")[0] == param
    assert not engine.submitted


# Pooling


def test_pooling_gives_what_the_model_computes(serve: Serve) -> None:
    (one,) = told(post(serve(EMBED)[0], "/pooling", input="cat"), pooling.PooledList)["data"]
    assert one == {"index": 0, "object": "pooling", "data": vector("cat")}
    raw = computed(bert().encode("cat"), 0, TAG)
    answer = post(serve(TAG)[0], "/pooling", input="cat", use_activation=False, task="token_classify")
    (one,) = told(answer, pooling.PooledList)["data"]
    assert one["data"] == raw.tolist()
    (one,) = told(post(serve(CLASSIFY)[0], "/pooling", input="cat"), pooling.PooledList)["data"]
    assert sum(one["data"]) == pytest.approx(1)


# Classes


def softmax(scores: np.ndarray) -> Any:
    powers = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_classes_of_texts(serve: Serve) -> None:
    texts = ["cat", "the dog sat"]
    data = told(post(serve(CLASSIFY)[0], "/classify", input=texts), classify.Classification)["data"]
    for at, (one, text) in enumerate(zip(data, texts, strict=True)):
        wanted = softmax(computed(bert().encode(text), 0, CLASSIFY))[0]
        assert one["probs"] == pytest.approx(wanted.tolist(), rel=1e-6)
        assert (one["index"], one["label"], one["num_classes"]) == (at, LABELS[int(wanted.argmax())], 3)


def test_scores_as_they_are(serve: Serve) -> None:
    answer = post(serve(CLASSIFY)[0], "/classify", input="cat", use_activation=False)
    (one,) = told(answer, classify.Classification)["data"]
    assert one["probs"] == computed(bert().encode("cat"), 0, CLASSIFY)[0].tolist()


def test_classes_of_tokens(serve: Serve) -> None:
    (one,) = told(post(serve(TAG)[0], "/classify", input="the cat"), classify.Classification)["data"]
    wanted = softmax(computed(bert().encode("the cat"), 0, TAG))
    assert [token["token"] for token in one["tokens"]] == ["[CLS]", "the", "cat", "[SEP]"]
    assert [token["label"] for token in one["tokens"]] == [LABELS[at] for at in wanted.argmax(-1)]
    assert one["tokens"][2]["probs"] == pytest.approx(wanted[2].tolist(), rel=1e-6)
    assert "label" not in one


# Scores


def scored(first: str, second: str) -> float:
    ids, at = bert().pair(first, second)
    return float(1 / (1 + np.exp(-float(computed(ids, at, SCORE)[0, 0]))))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", score.NAMES)
@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("cat", "dog", [("cat", "dog")]),
        ("cat", ["dog", "sat"], [("cat", "dog"), ("cat", "sat")]),
        (["cat"], ["dog", "sat"], [("cat", "dog"), ("cat", "sat")]),
        (["cat", "the"], ["dog", "sat"], [("cat", "dog"), ("the", "sat")]),
    ],
)
def test_scores_of_pairs(
    serve: Serve, path: str, names: tuple[str, str], first: Any, second: Any, pairs: list[tuple[str, str]]
) -> None:
    answer = post(serve(SCORE)[0], path, **dict(zip(names, (first, second), strict=True)))
    data = told(answer, score.Scores)["data"]
    assert [one["score"] for one in data] == pytest.approx([scored(*pair) for pair in pairs], rel=1e-6)


def test_vectors_are_compared_where_no_pair_is_read(serve: Serve) -> None:
    answer = post(serve(MATRYOSHKA)[0], "/score", text_1="cat", text_2=["cat", "dog"])
    data = told(answer, score.Scores)["data"]
    query = np.array(vector(PROMPTS["query"] + "cat", MATRYOSHKA))
    others = [np.array(vector(PROMPTS["document"] + text, MATRYOSHKA)) for text in ("cat", "dog")]
    assert [one["score"] for one in data] == pytest.approx([float(query @ one) for one in others], abs=1e-6)


def test_pairs_are_cut_where_that_is_asked_for(serve: Serve) -> None:
    url, engine = serve(SCORE)
    told(post(url, "/score", text_1="cat", text_2="dog " * MOST, truncate_prompt_tokens=-1), score.Scores)
    submit = engine.submitted[-1]
    assert (len(submit.prompt), submit.second) == (MOST, 3)


# Rankings


DOCUMENTS = ["the cat", "a dog", "dog sat", "find z"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_ranked(serve: Serve, path: str) -> None:
    answer = told(post(serve(SCORE)[0], path, query="cat", documents=DOCUMENTS), rerank.Ranking)
    wanted = sorted(((scored("cat", text), at) for at, text in enumerate(DOCUMENTS)), reverse=True)
    assert [one["index"] for one in answer["results"]] == [at for _, at in wanted]
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == pytest.approx([found for found, _ in wanted], rel=1e-6)
    told_texts = [one.get("document") for one in answer["results"]]
    assert told_texts == ([None] * 4 if "v2" in path else [{"text": DOCUMENTS[at]} for _, at in wanted])
    assert answer["meta"]["billed_units"] == {"search_units": 1}
    assert answer["usage"]["total_tokens"] == sum(len(bert().pair("cat", text)[0]) for text in DOCUMENTS)


@pytest.mark.parametrize(("top", "count"), [(2, 2), (0, 4), (None, 4), (9, 4)])
def test_the_best_of_them(serve: Serve, top: int | None, count: int) -> None:
    sent = {"query": "cat", "documents": [{"text": one} for one in DOCUMENTS], "top_n": top}
    answer = told(post(serve(SCORE)[0], "/rerank", **sent, return_documents=False), rerank.Ranking)
    assert len(answer["results"]) == count
    assert "document" not in answer["results"][0]


def test_documents_are_cut_where_that_is_asked_for(serve: Serve) -> None:
    url, engine = serve(SCORE)
    sent = {"query": "cat", "documents": ["dog " * MOST]}
    assert "documents[0]" in refused(post(url, "/rerank", **sent), "documents[0]")
    told(post(url, "/rerank", **sent, max_tokens_per_doc=4), rerank.Ranking)
    assert engine.submitted[-1].prompt == bert().pair("cat", "dog dog dog dog")[0]


@pytest.mark.parametrize(("more", "kept"), [({}, 4), ({"truncate_prompt_tokens": 4}, 2)])
def test_documents_that_are_compared_are_cut_too(serve: Serve, more: dict[str, int], kept: int) -> None:
    url, engine = serve(EMBED)
    sent = {"query": "cat", "documents": ["dog " * MOST, "dog"]}
    told(post(url, "/rerank", **sent, max_tokens_per_doc=4, **more), rerank.Ranking)
    prompts = [one.prompt for one in engine.submitted[-3:]]
    assert prompts == [bert().encode(text, add_special_tokens=True) for text in ("cat", "dog " * kept, "dog")]


# Tasks


@pytest.mark.parametrize(
    ("task", "path", "body", "route"),
    [
        (EMBED, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "/v1/embeddings"),
        (EMBED, "/v1/completions", {"prompt": "a"}, "/v1/embeddings"),
        (EMBED, "/classify", {"input": "a"}, "/v1/embeddings"),
        (CLASSIFY, "/v1/embeddings", {"input": "a"}, "/classify"),
        (CLASSIFY, "/rerank", {"query": "a", "documents": ["b"]}, "/classify"),
        (SCORE, "/v1/embeddings", {"input": "a"}, "/rerank"),
        (GENERATES, "/v1/embeddings", {"input": "a"}, "/v1/completions"),
        (GENERATES, "/pooling", {"input": "a"}, "/v1/completions"),
        (GENERATES, "/score", {"text_1": "a", "text_2": "b"}, "/v1/completions"),
    ],
)
def test_a_task_that_is_not_served(
    serve: Serve, task: TaskInfo, path: str, body: dict[str, Any], route: str
) -> None:
    answer = post(serve(task)[0], path, **body)
    message = refused(answer, "model")
    assert answer.json()["error"]["code"] == "task_not_served"
    assert f"--task {task.task}" in message
    assert route in message


# Keys


def test_a_key_pays_for_what_it_asks(tmp_path: Any) -> None:
    limits = {"api_keys": ("k",), "max_requests_per_key": 4, "max_tokens_per_minute_per_key": 60}
    engine = FakeEngine(computing(EMBED))
    with running(engine, text=bert(), task=EMBED, **limits) as url:
        headers = {"authorization": "Bearer k"}
        body = {"model": MODEL, "input": ["a"] * 10}
        answer = httpx.post(url + "/v1/embeddings", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert 29 <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= 60
        assert int(answer.headers["x-ratelimit-remaining-requests"]) == 3
        body = {"model": MODEL, "input": "a", "priority": -1}
        assert httpx.post(url + "/v1/embeddings", json=body, headers=headers).status_code == 400


def test_it_is_recorded_and_replayed(tmp_path: Any) -> None:
    body = {"model": MODEL, "input": ["the cat", "a"], "encoding_format": "base64"}
    with running(FakeEngine(computing(EMBED)), text=bert(), task=EMBED, record=tmp_path) as url:
        first = httpx.post(url + "/v1/embeddings", json=body)
    with replaying(tmp_path) as url:
        again = httpx.post(url + "/v1/embeddings", json=body)
    assert again.content == first.content
