"""Stored chat completions, by the openai SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.serving.http_support import FakeEngine, running

KEYS = ("key-one", "key-two")
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ],
    "max_tokens": 4,
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(FakeEngine(), api_keys=KEYS, store_bytes=1024 * 1024) as one:
        yield one


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[0], max_retries=0) as one:
        for kept in one.chat.completions.list():
            one.chat.completions.delete(kept.id)
        yield one


def chat(client: openai.OpenAI, **more: Any) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(**ASKED, store=True, **more)


def test_what_was_answered_is_there_until_it_is_deleted(client: openai.OpenAI) -> None:
    made = chat(client, metadata={"team": "red"}, n=2)
    found = client.chat.completions.retrieve(made.id)
    assert (found.choices, found.usage, found.created) == (made.choices, made.usage, made.created)
    assert found.metadata == {"team": "red"}
    messages = list(client.chat.completions.messages.list(made.id, limit=1))
    assert [one.content for one in messages] == ["Be brief.", None]
    assert messages[1].content_parts[0].text == "Hi"
    changed = client.chat.completions.update(made.id, metadata={"team": "blue"})
    assert client.chat.completions.retrieve(made.id) == changed
    assert client.chat.completions.delete(made.id).deleted
    for call in (client.chat.completions.retrieve, client.chat.completions.delete):
        with pytest.raises(openai.NotFoundError, match=made.id):
            call(made.id)


def test_a_stream_is_stored_as_if_it_had_been_whole(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True)
    with client.chat.completions.create(**ASKED, store=True, logprobs=True, stream=True) as stream:
        name = [chunk.id for chunk in stream][-1]
    found = client.chat.completions.retrieve(name)
    assert (found.choices, found.usage) == (whole.choices, whole.usage)


def test_lists_are_of_a_model_and_of_metadata(client: openai.OpenAI) -> None:
    made = [chat(client, metadata={"odd": str(number % 2), "all": "1"}).id for number in range(5)]
    names = lambda **query: [one.id for one in client.chat.completions.list(**query)]  # noqa: E731
    assert names(limit=2) == made
    assert names(order="desc") == made[::-1]
    assert names(metadata={"odd": "1"}) == made[1::2]
    assert names(metadata={"odd": "1", "all": "2"}) == []
    assert names(model="tiny") == made
    assert names(model="other") == []


def test_nothing_is_stored_that_nobody_asked_for(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(**ASKED, metadata={"team": "red"})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(made.id)
    assert list(client.chat.completions.list()) == []


def test_another_key_sees_nothing(client: openai.OpenAI, url: str) -> None:
    made = chat(client)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEYS[1], max_retries=0) as other:
        assert list(other.chat.completions.list()) == []
        for call in (
            lambda: other.chat.completions.retrieve(made.id),
            lambda: other.chat.completions.update(made.id, metadata={}),
            lambda: other.chat.completions.delete(made.id),
            lambda: list(other.chat.completions.messages.list(made.id)),
        ):
            with pytest.raises(openai.NotFoundError):
                call()


@pytest.mark.parametrize(
    "more", [{"metadata": {"x" * 65: ""}}, {"metadata": {"x": "y" * 513}}, {"metadata": {"x": 1}}]
)
def test_metadata_has_bounds(client: openai.OpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="metadata"):
        chat(client, **more)


def test_an_id_is_stored_once_and_what_has_no_room_is_an_error(client: openai.OpenAI, url: str) -> None:
    chat(client, extra_body={"request_id": "mine"})
    with pytest.raises(openai.BadRequestError, match="has this id already"):
        chat(client, extra_body={"request_id": "mine"})
    sent = ASKED | {"store": True, "stream": True, "request_id": "mine"}
    answer = httpx.post(f"{url}/v1/chat/completions", json=sent, headers={"x-api-key": KEYS[0]})
    assert '"error":{"message":"A stored chat completion has this id already."' in answer.text
    assert "[DONE]" not in answer.text
