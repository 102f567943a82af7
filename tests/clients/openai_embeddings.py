"""openai, the Python SDK: vectors, in both encodings, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

from tests.clients.rows import KEY, MODEL, URL, Rows, raises

row = Rows()
client = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
TEXTS = ["a cat sat on the mat", "a dog lay on the rug", "shares fell on Monday"]


def vectors(**more: Any) -> list[list[float]]:
    sent = {"model": MODEL, "input": TEXTS, **more}
    return [one.embedding for one in client.embeddings.create(**sent).data]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@row
def create() -> None:
    """embeddings.create, as it comes (base64 on the wire): vectors of length 1, near where texts are alike"""
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert (answer.object, [one.index for one in answer.data]) == ("list", [0, 1, 2])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    cat, dog, shares = (one.embedding for one in answer.data)
    assert abs(math.hypot(*cat) - 1) < 1e-3  # as bf16 has it
    assert cosine(cat, dog) > 2 * cosine(cat, shares)


@row
def encodings() -> None:
    """encoding_format float and base64 are the same numbers as the default, to the bit"""
    raw = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="base64")
    assert all(isinstance(one.embedding, str) for one in raw.data)
    assert vectors(encoding_format="float") == vectors()


@row
async def create_async() -> None:
    """embeddings.create, async, in both encodings"""
    async with AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as one:
        plain = await one.embeddings.create(model=MODEL, input=TEXTS)
        floats = await one.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    assert [one.embedding for one in plain.data] == [one.embedding for one in floats.data] == vectors()


@row
def one_text() -> None:
    """a text instead of a list: the vector it has among others"""
    assert vectors(input=TEXTS[0]) == vectors()[:1]


@row
def token_ids() -> None:
    """token ids, and lists of them"""
    ids = [101, 1037, 4937, 102]
    (alone,) = vectors(input=ids)
    assert vectors(input=[ids, [101, 102]])[0] == alone


@row
def own_dimensions() -> None:
    """dimensions as many as the model has"""
    assert vectors(dimensions=len(vectors()[0])) == vectors()


@row
def raw_response() -> None:
    """with_raw_response: the request's id, and parse"""
    answer = client.embeddings.with_raw_response.create(model=MODEL, input=TEXTS)
    assert answer.headers["x-request-id"]
    assert len(answer.parse().data) == 3


@row
def models() -> None:
    """models.list says what the model is for"""
    (one,) = client.models.list().data
    assert one.to_dict()["task"] == "embed"


@row
def too_long() -> None:
    """a text that is longer than the model reads: BadRequestError with the field"""
    with raises(openai.BadRequestError) as caught:
        vectors(input="cat " * 1000)
    assert str(caught.error.param).startswith("input")


@row
def empty() -> None:
    """an empty text: BadRequestError with the field"""
    with raises(openai.BadRequestError) as caught:
        vectors(input="")
    assert caught.error.param == "input"


@row
def unknown_model() -> None:
    """a model that is not there: NotFoundError"""
    with raises(openai.NotFoundError):
        vectors(model="text-embedding-3-small")


@row
def chats() -> None:
    """a chat with it: BadRequestError, whose code says that the model is for something else"""
    with raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
    assert caught.error.code == "task_not_served"


@row.refused("dimensions", "the model is not made to be cut")
def fewer_dimensions() -> None:
    """dimensions=128 of a model that has 384"""
    vectors(dimensions=128)


if __name__ == "__main__":
    row.run()
