"""The render routes: they answer with what the engine would get, or refuse the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from corepipe.serving.api.routes.render import Rendered
from tests.servers import TINY, Served, served
from tests.serving.http_support import MODEL, FakeEngine, running, saying, tokenizer

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi there"}]
SAYING = {"model": MODEL, "prompt": "Hello world"}
ASKING = {"model": MODEL, "messages": MESSAGES}
CALLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(saying("Hello world. "))


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with running(engine, max_requests_per_key=8, api_keys=("k",)) as where:
        yield where


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(url + path, json=body, headers={"authorization": "Bearer k"}, timeout=60)


def rendered(url: str, path: str, body: dict[str, Any]) -> list[Rendered]:
    answer = post(url, path + "/render", body)
    assert answer.status_code == 200, answer.text
    if path == TEXT:
        return msgspec.json.decode(answer.content, type=list[Rendered])
    return [msgspec.json.decode(answer.content, type=Rendered)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, SAYING),
        (TEXT, SAYING | {"prompt": ["a", "Hello world"], "n": 2, "max_tokens": 3}),
        (TEXT, SAYING | {"prompt": [[5, 6, 7], [8]], "seed": 7, "temperature": 0.5}),
        (TEXT, SAYING | {"prompt": "Hello world " * 20, "truncate_prompt_tokens": 5, "max_tokens": 2}),
        (TEXT, SAYING | {"add_special_tokens": False, "echo": True, "max_tokens": 0}),
        (TEXT, SAYING | {"stream": True, "stream_options": {"include_usage": True}, "priority": 3}),
        (CHAT, ASKING),
        (CHAT, ASKING | {"max_completion_tokens": 5, "n": 3, "top_p": 0.5, "stop": "x", "min_tokens": 2}),
        (CHAT, ASKING | {"add_generation_prompt": False, "cache_salt": "s", "logit_bias": {"5": 1.5}}),
        (CHAT, ASKING | {"truncate_prompt_tokens": 7, "max_tokens": 4, "bad_words": ["x"]}),
        (CHAT, ASKING | {"response_format": {"type": "json_object"}, "max_tokens": 4, "logprobs": True}),
    ],
)
def test_what_is_told_is_what_the_engine_is_given(url, engine, path, body):
    told = rendered(url, path, body)
    engine.submitted.clear()
    assert post(url, path, body).status_code == 200
    given_ = engine.submitted[:: body.get("n", 1)]
    assert [one.token_ids for one in told] == [submit.prompt for submit in given_]
    for one, submit in zip(told, given_, strict=True):
        drawn = one.sampling_params
        assert (drawn.max_tokens, drawn.min_tokens) == (submit.max_tokens, submit.min_tokens)
        assert (drawn.temperature, drawn.top_p, drawn.seed) == (
            submit.sampling.temperature,
            submit.sampling.top_p,
            submit.sampling.seed,
        )
        assert {int(token): bias for token, bias in drawn.logit_bias.items()} == submit.sampling.logit_bias
        assert (one.model, one.priority, one.stream) == (MODEL, submit.priority, body.get("stream", False))
        assert one.cache_salt == body.get("cache_salt")  # and nothing of the key's own
        assert drawn.n == body.get("n", 1)


def test_nothing_is_computed_and_no_key_is_charged(engine):
    with running(engine, max_tokens_per_minute_per_key=10, api_keys=("k",)) as url:
        engine.submitted.clear()
        for _ in range(5):
            assert len(rendered(url, TEXT, SAYING | {"prompt": "Hello world " * 5})[0].token_ids) > 5
        assert engine.submitted == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"model": MODEL}),
        (TEXT, SAYING | {"model": "other"}),
        (TEXT, SAYING | {"temprature": 1}),
        (TEXT, SAYING | {"prompt": ""}),
        (TEXT, SAYING | {"prompt": [10**6]}),
        (TEXT, SAYING | {"prompt": "a b " * 400}),
        (TEXT, SAYING | {"max_tokens": 4000}),
        (TEXT, SAYING | {"min_tokens": 9, "max_tokens": 3}),
        (TEXT, SAYING | {"n": 9}),
        (TEXT, SAYING | {"n": 3, "prompt": ["a", "b", "c"]}),
        (TEXT, SAYING | {"priority": -1}),
        (TEXT, SAYING | {"stream_options": {"include_usage": True}}),
        (TEXT, SAYING | {"guided_regex": "("}),
        (TEXT, SAYING | {"allowed_token_ids": [5], "bad_words": [tokenizer().decode([5])]}),
        (CHAT, ASKING | {"messages": []}),
        (CHAT, ASKING | {"messages": [{"role": "boss", "content": "a"}]}),
        (CHAT, ASKING | {"top_logprobs": 3}),
        (CHAT, ASKING | {"chat_template": "x"}),
        (CHAT, ASKING | {"tools": CALLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}),
        (CHAT, ASKING | {"continue_final_message": True, "add_generation_prompt": True}),
    ],
)
def test_what_the_endpoint_refuses_is_refused_alike(url, path, body):
    refused, asked = post(url, path + "/render", body), post(url, path, body)
    assert asked.status_code >= 400
    assert (refused.status_code, refused.json()) == (asked.status_code, asked.json())


def test_a_key_is_needed_and_a_body_is_as_large_as_elsewhere(url):
    assert httpx.post(url + TEXT + "/render", json=SAYING).status_code == 401
    assert httpx.get(url + TEXT + "/render", headers={"authorization": "Bearer k"}).status_code == 405


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Runs a server of two models; the tests name the second."""
    qwen = TINY.parent / "qwen2"
    with served(qwen, "--served-model-name", "other", "--also", f"tiny={TINY}") as one:
        yield one


@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_text_is_encoded_as_transformers_does(server: Served, text: str) -> None:
    theirs = AutoTokenizer.from_pretrained(TINY)
    (told,) = rendered(server.url, TEXT, {"model": "tiny", "prompt": text})
    assert told.token_ids == theirs(text)["input_ids"]


@pytest.mark.parametrize("turns", [1, 3])
def test_a_chat_is_rendered_as_transformers_does_and_its_ids_are_answered_alike(
    server: Served, turns: int
) -> None:
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": f"What is {at}?"} for at, role in enumerate(roles[:turns])]
    body = {"model": "tiny", "messages": messages, "max_tokens": 12, "seed": 3}
    (told,) = rendered(server.url, CHAT, body)
    theirs = AutoTokenizer.from_pretrained(TINY)
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert told.token_ids == expected
    whole = msgspec.to_builtins(told.sampling_params)
    again = server.post(TEXT, json={"model": "tiny", "prompt": told.token_ids, **whole}).json()
    said = server.post(CHAT, json=body).json()
    assert again["choices"][0]["text"] == said["choices"][0]["message"]["content"]
    assert again["usage"]["prompt_tokens"] == len(told.token_ids)
