"""Vectors, scores and classes of small random encoders, from real servers over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.engine.encoder_support import LABELS
from tests.servers import Served, served
from tests.tiny_encoders import write_bert

TEXTS = ["the cat sat", "a dog", "find the dog", "cat " * 40, "z", "中文", "[MASK] \0"] * 5


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = write_bert(tmp_path_factory.mktemp("bert"))
    with served(folder, "--served-model-name", "tiny", "--threads", 1, "--dtype", "fp32") as running:
        yield running


def post(server: Served, path: str, **body: Any) -> Any:
    answer = httpx.post(server.url + path, json={"model": "tiny", **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_bits_do_not_depend_on_the_batch_nor_on_the_encoding(vectors: Served) -> None:
    with openai.OpenAI(base_url=vectors.url + "/v1", api_key="none", max_retries=0) as client:
        together = client.embeddings.create(model="tiny", input=TEXTS).data
        alone = [client.embeddings.create(model="tiny", input=text).data[0] for text in TEXTS[:7]]
        floats = client.embeddings.create(model="tiny", input=TEXTS[:7], encoding_format="float").data
    assert len(together) == len(TEXTS)
    for at, one in enumerate(together):
        assert one.embedding == alone[at % 7].embedding == floats[at % 7].embedding
    assert len({tuple(one.embedding) for one in alone}) == 7
    assert len(alone[0].embedding) == 64


def test_token_ids_give_what_their_text_gives(vectors: Served) -> None:
    ids = post(vectors, "/tokenize", prompt="the cat sat")["tokens"]
    by_ids, by_text = (post(vectors, "/v1/embeddings", input=one)["data"] for one in (ids, "the cat sat"))
    assert by_ids == by_text
    tensors = {"name": "input_ids", "shape": [1, len(ids)], "datatype": "INT64", "data": ids}
    answer = httpx.post(vectors.url + "/v2/models/tiny/infer", json={"inputs": [tensors]}).json()
    assert answer["outputs"][0]["data"] == by_text[0]["embedding"]


def test_as_many_texts_as_may_be(vectors: Served) -> None:
    texts = [TEXTS[at % 3] for at in range(2048)]
    data = post(vectors, "/v1/embeddings", input=texts, encoding_format="base64")["data"]
    assert len(data) == 2048
    assert len({one["embedding"] for one in data}) == 3


def test_the_model_says_what_it_is_for(vectors: Served) -> None:
    assert httpx.get(vectors.url + "/v1/models").json()["data"][0]["task"] == "embed"
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/classify", {"input": "a"}),
    ):
        answer = httpx.post(vectors.url + path, json={"model": "tiny", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "task_not_served")


def test_classes_and_pairs(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("heads")
    classifier = write_bert(home / "classes", *LABELS, name="BertForSequenceClassification")
    tagger = write_bert(home / "tags", *LABELS, name="BertForTokenClassification")
    scorer = write_bert(home / "pairs", "LABEL_0", name="BertForSequenceClassification")
    arguments = ("--threads", 1, "--dtype", "fp32", "--served-model-name", "tiny")
    with served(classifier, *arguments) as classes:
        both = post(classes, "/classify", input=TEXTS[:3])["data"]
        for at, one in enumerate(both):
            (alone,) = post(classes, "/classify", input=TEXTS[at])["data"]
            assert (alone["label"], alone["probs"]) == (one["label"], one["probs"])
            assert sum(one["probs"]) == pytest.approx(1, abs=1e-6)
    with served(tagger, *arguments) as tags:
        (one,) = post(tags, "/classify", input="the cat")["data"]
        assert [token["token"] for token in one["tokens"]] == ["[CLS]", "the", "cat", "[SEP]"]
    with served(scorer, *arguments) as pairs:
        ranked = post(pairs, "/rerank", query="cat", documents=TEXTS[:3])["results"]
        scores = [post(pairs, "/score", text_1="cat", text_2=text)["data"][0]["score"] for text in TEXTS[:3]]
        assert [one["relevance_score"] for one in ranked] == sorted(scores, reverse=True)
        assert [one["index"] for one in ranked] == np.argsort(scores)[::-1].tolist()
        assert [one["document"]["text"] for one in ranked] == [TEXTS[one["index"]] for one in ranked]
