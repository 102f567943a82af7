"""Requests of clients of other servers, under other names and in other forms."""

from __future__ import annotations

import base64
import math
from typing import Any

import httpx
import jinja2
import msgspec
import numpy as np
import pytest

from corepipe.models.tasks import TaskInfo
from corepipe.serving.api.routes import cohere
from corepipe.serving.api.routes.tokens import TokenizerInfo
from tests.engine.encoder_support import (
    CLASSIFY,
    EMBED,
    MATRYOSHKA,
    MOST,
    RAW,
    SCORE,
    bert,
    computed,
)
from tests.serving.http_support import MODEL, FakeEngine, Serve, running, tokenizer

LONG = "cat " * 2 * MOST
REFUSED_BY_COHERE = ({"truncate": "end"}, {"images": ["x"]}, {"inputs": []})


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(url: str, path: str, **body: Any) -> str:
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["param"])


def vector(text: str, task: TaskInfo = EMBED) -> list[float]:
    return computed(bert().encode(text), 0, task)[0].tolist()


@pytest.mark.parametrize(
    ("task", "path", "same", "body"),
    [
        (EMBED, "/embeddings", "/v1/embeddings", {"input": ["the cat", "a dog"]}),
        (CLASSIFY, "/v1/classify", "/classify", {"input": "the cat"}),
    ],
)
def test_the_same_route_at_another_path(
    serve: Serve, task: TaskInfo, path: str, same: str, body: Any
) -> None:
    url = serve(task)[0]
    assert post(url, path, **body)["data"] == post(url, same, **body)["data"]


# A remote tokenizer, as lm-eval has one


def test_a_remote_tokenizer_finds_what_it_needs() -> None:
    engine = FakeEngine()
    with running(engine) as url:
        answer = httpx.get(url + "/tokenizer_info")
        info = msgspec.json.decode(answer.content, type=TokenizerInfo)
        assert info.model_max_length == 256
        assert (info.bos_token, info.eos_token) == (None, "<|im_end|>")
        ends = post(url, "/tokenize", prompt=info.eos_token, add_special_tokens=False)["tokens"]
        assert ends == [*tokenizer().eos_ids]
        tokens = post(url, "/tokenize", prompt="Hi there", add_special_tokens=False)["tokens"]
        assert post(url, "/detokenize", tokens=tokens)["prompt"] == "Hi there"
        assert info.chat_template is not None
        chat = [{"role": "user", "content": "Hi"}]
        template = jinja2.Environment().from_string(info.chat_template)
        prompt = template.render(messages=chat, add_generation_prompt=True)
        ours = post(url, "/tokenize", messages=chat)["tokens"]
        assert post(url, "/tokenize", prompt=prompt, add_special_tokens=False)["tokens"] == ours


def test_a_template_of_the_operators_is_told() -> None:
    with running(FakeEngine(), chat_template="{{ messages }}") as url:
        assert httpx.get(url + "/tokenizer_info").json()["chat_template"] == "{{ messages }}"
    with running(FakeEngine(), api_keys=["k"]) as url:
        assert httpx.get(url + "/tokenizer_info").status_code == 401


# Cohere's


def test_coheres_second_version_tells_vectors_by_their_types(serve: Serve) -> None:
    url = serve(EMBED)[0]
    texts = ["the cat", "a dog"]
    asked = {"model": MODEL, "texts": texts, "input_type": "search_document"}
    answer = post(url, "/v2/embed", **asked, embedding_types=["float", "base64"])
    msgspec.convert(answer, cohere.Embedded)
    assert "response_type" not in answer
    assert answer["texts"] == texts
    assert answer["embeddings"]["float"] == [vector(text) for text in texts]
    read = [np.frombuffer(base64.b64decode(one), "<f4").tolist() for one in answer["embeddings"]["base64"]]
    assert read == answer["embeddings"]["float"]
    tokens = sum(len(bert().encode(text)) for text in texts)
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}}
    assert [*post(url, "/v2/embed", texts=texts)["embeddings"]] == ["float"]


def test_coheres_first_version_says_what_they_are(serve: Serve) -> None:
    url = serve(EMBED)[0]
    plain = post(url, "/v1/embed", texts=["the cat"], images=[])
    assert (plain["response_type"], plain["embeddings"]) == ("embeddings_floats", [vector("the cat")])
    typed = post(url, "/v1/embed", texts=["the cat"], embedding_types=["float"])
    assert typed["response_type"] == "embeddings_by_type"
    assert typed["embeddings"] == {"float": plain["embeddings"]}


def test_coheres_prompts_cuts_and_dimensions(serve: Serve) -> None:
    url = serve(MATRYOSHKA)[0]
    by_type = post(url, "/v2/embed", texts=["a dog"], input_type="search_query")["embeddings"]["float"]
    ours = post(url, "/v1/embeddings", input="a dog", input_type="search_query")["data"][0]["embedding"]
    assert by_type == [ours]
    url = serve(EMBED)[0]
    cut = post(url, "/v1/embeddings", input=LONG, truncate_prompt_tokens=-1)["data"][0]["embedding"]
    assert post(url, "/v2/embed", texts=[LONG])["embeddings"]["float"] == [cut]
    post(url, "/v2/embed", texts=[LONG], truncate="START")
    assert refused(url, "/v2/embed", texts=[LONG], truncate="NONE") == "texts"
    few = post(serve(MATRYOSHKA)[0], "/v2/embed", texts=["a dog"], output_dimension=4)["embeddings"]["float"]
    assert len(few[0]) == 4
    for wrong in ({"embedding_types": ["int8"]}, {"texts": []}, {"texts": [""]}, *REFUSED_BY_COHERE):
        assert refused(url, "/v2/embed", **{"texts": ["a"], **wrong}).startswith(next(iter(wrong)))


# Text Embeddings Inference's


def test_embed_is_a_list_of_vectors(serve: Serve) -> None:
    url = serve(EMBED)[0]
    assert post(url, "/embed", inputs="the cat") == [vector("the cat")]
    assert post(url, "/embed", inputs=["the cat", "a dog"]) == [vector("the cat"), vector("a dog")]
    assert post(url, "/embed", inputs=bert().encode("the cat")) == [vector("the cat")]
    assert refused(url, "/embed", inputs=LONG) == "inputs"
    cut = post(url, "/v1/embeddings", input=LONG, truncate_prompt_tokens=-1)["data"][0]["embedding"]
    assert post(url, "/embed", inputs=LONG, truncate=True) == [cut]
    post(url, "/embed", inputs=LONG, truncate=True, truncation_direction="Left")
    assert refused(url, "/embed", inputs="a", normalize=False) == "normalize"
    assert refused(url, "/embed", inputs="a", truncation_direction="up") == "truncation_direction"
    assert refused(url, "/embed", inputs="") == "inputs"


def test_embed_normalizes_unless_it_is_told_not_to(serve: Serve) -> None:
    url = serve(RAW)[0]
    (unit,) = post(url, "/embed", inputs="the cat")
    (raw,) = post(url, "/embed", inputs="the cat", normalize=False)
    assert math.isclose(math.hypot(*unit), 1, rel_tol=1e-5)
    assert raw == vector("the cat", RAW)


@pytest.mark.parametrize("raw", [False, True])
def test_texts_are_ranked_in_a_list(serve: Serve, raw: bool) -> None:
    url, texts = serve(SCORE)[0], ["the cat", "a dog", "a mat"]
    ours = post(url, "/rerank", query="a", documents=texts, use_activation=False)["results"]
    told = post(url, "/rerank", query="a", texts=texts, raw_scores=raw, return_text=True)
    assert [one["index"] for one in told] == [one["index"] for one in ours]
    assert [one["text"] for one in told] == [one["document"]["text"] for one in ours]
    logits = [one["relevance_score"] for one in ours]
    wanted = logits if raw else [1 / (1 + math.exp(-one)) for one in logits]
    assert [one["score"] for one in told] == pytest.approx(wanted)
    assert all("text" not in one for one in post(url, "/rerank", query="a", texts=texts))


def test_ranked_texts_may_be_vectors_that_are_compared(serve: Serve) -> None:
    url, texts = serve(EMBED)[0], ["the cat", "a dog"]
    ours = post(url, "/rerank", query="a", documents=texts)["results"]
    told = post(url, "/rerank", query="a", texts=texts)
    assert [(one["index"], one["score"]) for one in told] == [
        (one["index"], one["relevance_score"]) for one in ours
    ]


def test_what_is_wrong_with_texts_is_named(serve: Serve) -> None:
    url = serve(SCORE)[0]
    assert refused(url, "/rerank", query="a", texts=[]) == "texts"
    assert refused(url, "/rerank", query="a", texts=[LONG]) == "texts[0]"
    post(url, "/rerank", query="a", texts=[LONG], truncate=True)
    assert refused(url, "/rerank", query="a", texts=["a"], top_n=1) == "top_n"
    assert refused(url, "/rerank", query="a", texts=["a"], documents=["a"]) == "texts"
    assert refused(url, "/rerank", query="the texts") == "documents"
