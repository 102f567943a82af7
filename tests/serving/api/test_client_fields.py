"""Fields beyond OpenAI's that clients send, in vLLM's forms: over a socket, streamed and plain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from corepipe.models.text.tokenizer import Tokenizer, set_bos_eos
from corepipe.serving.api.answering import request_templates
from tests.serving import http_support
from tests.serving.http_support import FakeEngine, chunks_of, running, saying, tokenizer

TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hi there", "max_tokens": 6}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6}
BODIES = {"/v1/completions": TEXT, "/v1/chat/completions": CHAT}
SAID = "Hello wörld… "
PATHS = pytest.mark.parametrize("path", BODIES)
PAUSES = pytest.mark.parametrize("pause", [0.0, 0.001])


def ask(url: str, path: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(url + path, json=BODIES.get(path, {}) | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(url: str, path: str, **fields: Any) -> list[dict[str, Any]]:
    return chunks_of(httpx.post(url + path, json=BODIES[path] | fields | {"stream": True}))


def refusal(url: str, path: str, **fields: Any) -> tuple[str, str]:
    answer = httpx.post(url + path, json=BODIES.get(path, {}) | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["code"]


def of_prompt(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the object that has `prompt_token_ids` and `prompt_logprobs`."""
    return answer["choices"][0] if path == "/v1/completions" else answer


@PATHS
@PAUSES
def test_token_ids_streamed_are_those_of_a_plain_answer(url, engine, path, pause):
    engine.script = saying(SAID, pause=pause)
    plain = ask(url, path, return_token_ids=True, n=2)
    ids = tokenizer().encode(SAID)[:6]
    assert [one["token_ids"] for one in plain["choices"]] == [ids, ids]
    prompt = engine.submitted[-1].prompt
    assert of_prompt(path, plain)["prompt_token_ids"] == prompt
    streamed = chunks(url, path, return_token_ids=True, n=2)
    for index in range(2):
        own = [one["choices"][0] for one in streamed if one["choices"][0]["index"] == index]
        assert [token for one in own for token in one.get("token_ids", ())] == ids
        if path == "/v1/completions":
            assert [one.get("prompt_token_ids") for one in own] == [prompt] + [None] * (len(own) - 1)
    if path == "/v1/chat/completions":
        assert [one.get("prompt_token_ids") for one in streamed] == [prompt] + [None] * (len(streamed) - 1)
        assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@PATHS
def test_tokens_are_told_whose_text_is_not_shown(url, engine, path):
    engine.script = saying("Yes<|im_end|>", ends="stop")
    (eos,) = tokenizer().eos_ids
    (ended,) = ask(url, path, return_token_ids=True)["choices"]
    assert ended["token_ids"][-1] == eos
    engine.script = saying(SAID)
    (cut,) = ask(url, path, return_token_ids=True, stop="lo")["choices"]
    streamed = chunks(url, path, return_token_ids=True, stop="lo")
    shown = cut["text"] if path == "/v1/completions" else cut["message"]["content"]
    assert shown == "Hel"
    assert "lo" in tokenizer().decode(cut["token_ids"])
    told = [token for one in streamed for token in one["choices"][0].get("token_ids", ())]
    assert told == cut["token_ids"] == tokenizer().encode(SAID)[: len(told)]


@PATHS
@PAUSES
@pytest.mark.parametrize("count", [0, 2])
def test_a_prompts_logprobs_have_vllms_form(url, engine, path, pause, count):
    """The scripted engine gives -0.5 for each token, with itself and the next id as the likeliest."""
    engine.script = saying(SAID, pause=pause)
    plain = of_prompt(path, ask(url, path, prompt_logprobs=count))["prompt_logprobs"]
    prompt = engine.submitted[-1].prompt
    assert engine.submitted[-1].sampling.prompt_logprobs == count
    assert plain[0] is None
    for token, entry in zip(prompt[1:], plain[1:], strict=True):
        assert [*entry] == [str(token), str(token + 1)][: max(count, 1)]
        own = tokenizer().decode_token(token)
        assert entry[str(token)] == {"logprob": -0.5, "rank": 1 if count else 7, "decoded_token": own}
        assert count == 0 or entry[str(token + 1)]["rank"] == 2
    streamed = chunks(url, path, prompt_logprobs=count)
    assert of_prompt(path, streamed[0])["prompt_logprobs"] == plain
    assert not any("prompt_logprobs" in of_prompt(path, one) for one in streamed[1:])


def test_an_echo_and_the_prompts_logprobs_have_what_each_was_asked_for(url, engine):
    engine.script = saying(SAID)
    for echoed, asked in ((1, 2), (2, 0)):
        answer = ask(url, "/v1/completions", echo=True, logprobs=echoed, prompt_logprobs=asked)
        assert engine.submitted[-1].sampling.prompt_logprobs == 2
        (choice,) = answer["choices"]
        alone = ask(url, "/v1/completions", echo=True, logprobs=echoed)["choices"][0]["logprobs"]
        assert choice["logprobs"] == alone
        assert {len(entry) for entry in choice["prompt_logprobs"][1:]} == {max(asked, 1)}


def test_a_chats_echo_does_not_tell_of_its_prompt(url, engine):
    engine.script = saying(SAID)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure: "}]
    asked = {"messages": messages, "echo": True, "continue_final_message": True, "logprobs": True}
    answer = ask(url, "/v1/chat/completions", **asked, prompt_logprobs=1)
    assert answer["choices"][0]["message"]["content"].startswith("Sure: Hello")
    assert len(answer["choices"][0]["logprobs"]["content"]) == 6
    streamed = chunks(url, "/v1/chat/completions", **asked)
    said = "".join(one["choices"][0]["delta"].get("content", "") for one in streamed)
    assert said == answer["choices"][0]["message"]["content"]
    user = ask(url, "/v1/chat/completions", echo=True)["choices"][0]["message"]["content"]
    assert user.startswith("Hello")


@PATHS
def test_tokens_are_named_by_their_ids(url, engine, path):
    engine.script = saying(SAID)
    asked = {"logprobs": 1} if path == "/v1/completions" else {"logprobs": True, "top_logprobs": 1}
    ids = tokenizer().encode(SAID)[:6]

    def names(answer):
        told = answer["choices"][0]["logprobs"]
        if path == "/v1/completions":
            return told["tokens"]
        return [one["token"] for one in told["content"]]

    by_text = ask(url, path, **asked)
    by_id = ask(url, path, **asked, return_tokens_as_token_ids=True)
    assert names(by_id) == [f"token_id:{token}" for token in ids]
    assert names(by_text) == [tokenizer().decode_token(token) for token in ids]
    told = [by_text["choices"][0]["logprobs"], by_id["choices"][0]["logprobs"]]
    if path == "/v1/completions":
        assert [*told[1]["top_logprobs"][0]] == [f"token_id:{ids[0]}"]
        assert told[0]["text_offset"] == told[1]["text_offset"]
    else:
        assert [one["bytes"] for one in told[0]["content"]] == [one["bytes"] for one in told[1]["content"]]
        assert told[1]["content"][0]["top_logprobs"][0]["token"] == f"token_id:{ids[0]}"
    streamed = chunks(url, path, **asked, return_tokens_as_token_ids=True)
    said = [one for one in streamed if one["choices"][0]["logprobs"]]
    assert [name for one in said for name in names(one)] == names(by_id)


@PATHS
def test_every_chunk_has_the_usage_so_far(url, engine, path):
    engine.script = saying(SAID, pause=0.001)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *told, last = chunks(url, path, stream_options=options, n=2)
    prompt = len(engine.submitted[-1].prompt)
    for index in range(2):
        counts = [one["usage"] for one in told if one["choices"][0]["index"] == index]
        assert {one["prompt_tokens"] for one in counts} == {prompt}
        completion = [one["completion_tokens"] for one in counts]
        assert completion == sorted(completion)
        assert completion[-1] == 6
        if path == "/v1/chat/completions":
            assert completion[0] == 0
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 12)
    alone = {"continuous_usage_stats": True}
    param, _ = refusal(url, path, stream=True, stream_options=alone)
    assert param == "stream_options.continuous_usage_stats"


@PATHS
def test_the_answers_id_is_the_clients(url, engine, path):
    prefix = "cmpl" if path == "/v1/completions" else "chatcmpl"
    header = {"x-request-id": "exchange-1"}
    for _ in range(2):
        answer = httpx.post(url + path, json=BODIES[path] | {"request_id": "run:7.a-b_c"}, headers=header)
        assert answer.json()["id"] == f"{prefix}-run:7.a-b_c"
        assert answer.headers["x-request-id"] == "exchange-1"
    assert len({one.id for one in engine.submitted}) == 2, "the engine tells them apart"
    assert {one["id"] for one in chunks(url, path, request_id="x")} == {f"{prefix}-x"}
    for wrong in ("", "a b", "é", "a" * 129, "a\n", "a/b", 7):
        assert refusal(url, path, request_id=wrong)[0] == "request_id"


def test_the_sdk_reads_them(client, engine):
    engine.script = saying(SAID)
    extra = {"return_token_ids": True, "prompt_logprobs": 1, "request_id": "sdk"}
    answer = client.chat.completions.create(**CHAT, extra_body=extra)
    assert answer.id == "chatcmpl-sdk"
    assert answer.choices[0].token_ids == tokenizer().encode(SAID)[:6]
    assert len(answer.prompt_logprobs) == len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = list(client.completions.create(**TEXT, stream=True, stream_options=options, extra_body=extra))
    assert [one.usage.completion_tokens for one in streamed][-1] == 6
    assert streamed[0].choices[0].prompt_token_ids == tokenizer().encode("Hi there")
    said = {"type": "content", "content": "Hello"}
    assert client.chat.completions.create(**CHAT, prediction=said).choices[0].message.content


# Chats


SURE = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure: "}]
PROMPT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nSure: "


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"continue_final_message": True}, PROMPT),
        ({"continue_final_message": True, "add_generation_prompt": False}, PROMPT),
        ({"add_generation_prompt": False}, PROMPT + "<|im_end|>\n"),
        ({}, PROMPT + "<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": True}, PROMPT + "<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_where_a_chats_prompt_ends(url, engine, fields, prompt):
    ask(url, "/v1/chat/completions", messages=SURE, **fields)
    assert tokenizer().decode(engine.submitted[-1].prompt, skip_special_tokens=False) == prompt
    assert ask(url, "/tokenize", messages=SURE, **fields)["tokens"] == engine.submitted[-1].prompt


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_prompt_ends_in_one_way(url, path):
    both = {"messages": SURE, "continue_final_message": True, "add_generation_prompt": True}
    assert refusal(url, path, **both)[0] == "continue_final_message"


THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if not enable_thinking %}<think></think>{% endif %}"
    "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}{{ tag }}"
)


@pytest.fixture(scope="module")
def thinking(engine: FakeEngine) -> Iterator[str]:
    with running(engine, chat_template=THINKING, trust_request_chat_template=True) as where:
        yield where


def rendered(url: str, engine: FakeEngine, **fields: Any) -> str:
    ask(url, "/v1/chat/completions", **fields)
    if "documents" not in fields:
        tokens = ask(url, "/tokenize", **{"messages": CHAT["messages"], **fields})["tokens"]
        assert tokens == engine.submitted[-1].prompt
    return tokenizer().decode(engine.submitted[-1].prompt, skip_special_tokens=False)


def test_variables_reach_the_template(thinking, engine):
    assert rendered(thinking, engine) == "Hi<think></think>"
    assert rendered(thinking, engine, chat_template_kwargs={"enable_thinking": False}) == "Hi<think></think>"
    assert rendered(thinking, engine, chat_template_kwargs={"enable_thinking": True, "tag": "é"}) == "Hié"
    forged = {"enable_thinking": True, "tag": "<|im_end|>"}
    assert rendered(thinking, engine, chat_template_kwargs=forged) == "Hi<|im_end|>"
    assert engine.submitted[-1].prompt.count(1) == 0, "it is text"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"bos_token": "x"}, "chat_template_kwargs.bos_token"),
        ({"add_generation_prompt": False}, "chat_template_kwargs.add_generation_prompt"),
        ({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
        ({"self": 1}, "chat_template_kwargs.self"),
        ({"a b": 1}, "chat_template_kwargs"),
        ({"": 1}, "chat_template_kwargs"),
        ({"a": 2**70}, "chat_template_kwargs"),
        ({"a": [0] * 4_097}, "chat_template_kwargs"),
        ({f"a{at}": 1 for at in range(65)}, "chat_template_kwargs"),
        ({"a": [[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]}, "chat_template_kwargs"),
        ("x", "chat_template_kwargs"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_variables_are_bounded_and_take_no_name_of_the_templates(url, path, given, param):
    assert refusal(url, path, messages=SURE, chat_template_kwargs=given)[0] == param


def test_documents_are_for_templates_that_name_them(url, thinking, engine):
    documents = [{"title": "A", "text": "b"}, {"title": "<|im_end|>", "text": "c"}]
    text = rendered(thinking, engine, documents=documents)
    assert text == "Hi<think></think>[A: b][<|im_end|>: c]"
    assert engine.submitted[-1].prompt.count(1) == 0
    assert refusal(url, "/v1/chat/completions", documents=documents)[0] == "documents"
    assert refusal(thinking, "/v1/chat/completions", documents=[{"title": 1}])[0] == "documents[0][...]"
    ask(url, "/v1/chat/completions", documents=[])


def test_a_request_brings_a_template_where_the_server_takes_it(url, thinking, engine, monkeypatch):
    monkeypatch.setattr(request_templates, "MOST_TEMPLATES", 2)
    own = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}<|im_end|>"
    assert rendered(thinking, engine, chat_template=own) == "<|im_start|>Hi<|im_end|>"
    assert engine.submitted[-1].prompt[0] == 0, "what it spells are tokens"
    for at in range(3):  # more than are kept
        assert rendered(thinking, engine, chat_template=f"{at}" + own) == f"{at}<|im_start|>Hi<|im_end|>"
    for path in ("/v1/chat/completions", "/tokenize"):
        asked = {"messages": SURE, "chat_template": own}
        assert refusal(url, path, **asked) == ("chat_template", "unsupported_parameter")
    for wrong in ("{% if %}", "{{ ''.__class__.__mro__ }}", "x" * 65_537):
        assert refusal(thinking, path, **asked | {"chat_template": wrong})[0] == "chat_template"
    assert rendered(thinking, engine) == "Hi<think></think>"


LOOP = "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}"
FIRST_PART = "{% for m in messages %}{{ m.content[0].text }}{% endfor %}"


def test_contents_come_in_the_form_that_a_template_reads(thinking, engine):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for template, one, several in ((LOOP, "Hi|", "a|b|"), (FIRST_PART, "Hi", "a\nb")):
        assert rendered(thinking, engine, chat_template=template) == one
        messages = [{"role": "user", "content": parts}]
        assert rendered(thinking, engine, chat_template=template, messages=messages) == several
    assert rendered(thinking, engine, messages=messages) == "a\nb<think></think>"
    for dropping in ("<|im_end|>", "{% for m in messages %}{{ m.text }}{% endfor %}"):
        asked = {"messages": messages, "chat_template": dropping}
        assert refusal(thinking, "/v1/chat/completions", **asked)[0] == "chat_template"


def test_tokenize_takes_a_chats_fields_for_messages_alone(url):
    of_chats = {"continue_final_message": True, "chat_template_kwargs": {"a": 1}, "chat_template": "x"}
    for name, value in of_chats.items():
        assert refusal(url, "/tokenize", prompt="a", **{name: value})[0] == name


# Prompts


def test_a_prompt_is_cut_to_its_end_or_its_beginning(url, engine):
    ids = tokenizer().encode("The quick brown fox jumps over the lazy dog. " * 3)
    text = tokenizer().decode(ids)
    for prompt in (text, ids):
        for side, kept in ((None, ids[-7:]), ("left", ids[-7:]), ("right", ids[:7])):
            fields = {"prompt": prompt, "truncate_prompt_tokens": 7, "truncation_side": side}
            answer = ask(url, "/v1/completions", **fields, echo=True)
            assert engine.submitted[-1].prompt == kept
            assert answer["usage"]["prompt_tokens"] == 7
            assert answer["choices"][0]["text"].startswith(tokenizer().decode(kept))
    assert ask(url, "/v1/completions", truncate_prompt_tokens=100)["usage"]["prompt_tokens"] == 4
    ask(url, "/v1/chat/completions", truncate_prompt_tokens=5)
    whole = ask(url, "/tokenize", messages=CHAT["messages"])["tokens"]
    assert engine.submitted[-1].prompt == whole[-5:]


def test_what_is_put_around_a_text_stays_when_it_is_cut(engine):
    own = Tokenizer(Backend.from_str(tokenizer().backend.to_str()), {}, None)
    set_bos_eos(own.backend, "<|im_start|>", "<|im_end|>", Path("tokenizer"))
    ids = own.encode("The quick brown fox", add_special_tokens=False)
    with running(engine, text=own) as url:
        for side, most, kept in (("left", 6, ids[-4:]), ("right", 6, ids[:4]), ("left", 3, ids[-1:])):
            fields = {"truncate_prompt_tokens": most, "truncation_side": side}
            ask(url, "/v1/completions", prompt="The quick brown fox", **fields)
            assert engine.submitted[-1].prompt == [0, *kept, 1]
            ask(url, "/v1/completions", prompt="The quick brown fox", **fields, add_special_tokens=False)
            assert engine.submitted[-1].prompt == (ids[-most:] if side == "left" else ids[:most])
        ask(url, "/v1/completions", prompt="The quick brown fox", truncate_prompt_tokens=1)
        assert engine.submitted[-1].prompt == [0]


@PATHS
def test_the_longest_prompt_leaves_room_for_the_answer(url, engine, path):
    """The context has 256 tokens; much longer texts are read and then truncated."""

    def of(words):
        text = "word " * words
        return (
            {"prompt": text}
            if path == "/v1/completions"
            else {"messages": [{"role": "user", "content": text}]}
        )

    said = of(20_000)
    for wanted, kept in ((6, 250), (255, 1)):
        ask(url, path, **said, max_tokens=wanted, truncate_prompt_tokens=-1)
        assert len(engine.submitted[-1].prompt) == kept
    assert refusal(url, path, **said)[1] == "context_length_exceeded"
    for wrong in (257, 0, -2):
        assert refusal(url, path, truncate_prompt_tokens=wrong)[0] == "truncate_prompt_tokens"
    assert refusal(url, path, **of(200_000), truncate_prompt_tokens=-1)[1] == "context_length_exceeded"


def with_tokens(*names: str) -> Tokenizer:
    backend = Backend.from_str(tokenizer().backend.to_str())
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return Tokenizer(backend, {"eos_token": "<|im_end|>"}, http_support.TEMPLATE)


@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ],
)
def test_a_suffix_is_put_after_the_gap(engine, names):
    own = with_tokens(*reversed(names))
    with running(engine, text=own) as url:
        ask(url, "/v1/completions", prompt=["def f(", "x"], suffix="return 1")
        before, between, after = (own.backend.token_to_id(name) for name in names)
        plain = [own.encode(text) for text in ("def f(", "return 1")]
        assert engine.submitted[-2].prompt == [before, *plain[0], between, *plain[1], after]
        (echoed,) = ask(url, "/v1/completions", prompt="def f(", suffix="return 1", echo=True)["choices"]
        assert engine.submitted[-1].prompt == engine.submitted[-3].prompt
        assert echoed["text"].startswith("def f(Hel")
        (alone,) = ask(url, "/v1/completions", prompt="a", suffix="b", echo=True, max_tokens=0)["choices"]
        assert alone["text"] == "a"
        for other in ({"echo": True, "logprobs": 0}, {"truncate_prompt_tokens": 5}, {"prompt": [5, 6]}):
            assert refusal(url, "/v1/completions", **{"suffix": "b"} | other)[0] == "suffix"


def test_a_suffix_is_refused_by_name_where_there_are_no_tokens_for_it(url):
    for echo in (False, True):
        told = refusal(url, "/v1/completions", suffix="x", echo=echo)
        assert told == ("suffix", "unsupported_parameter")
    ask(url, "/v1/completions", suffix="")


def test_bad_words_are_sent_as_the_tokens_that_spell_them(url, engine):
    encode = tokenizer().encode
    for path in BODIES:
        ask(url, path, bad_words=["the", " the", "the", "ß"])
        words = engine.submitted[-1].bad_words
        assert words == [encode("the"), encode(" the"), encode("the"), encode(" the"), encode("ß")]
        for wrong in ("x", [""], [" "], [1], ["x" * 257], ["x"] * 129):
            assert refusal(url, path, bad_words=wrong)[0].startswith("bad_words")


@PATHS
def test_allowed_tokens_are_sent_and_some_must_be_left(url, engine, path):
    (a,) = tokenizer().encode("a")
    ask(url, path, allowed_token_ids=[a, 5])
    assert engine.submitted[-1].sampling.allowed_token_ids == [a, 5]
    ask(url, path, allowed_token_ids=[a, 5], bad_words=["a"], min_tokens=2)
    (eos,) = tokenizer().eos_ids
    for others in ({"bad_words": ["a"]}, {"bad_words": ["aa"]}):
        assert refusal(url, path, allowed_token_ids=[a], **others)[0] == "allowed_token_ids"
    assert refusal(url, path, allowed_token_ids=[eos], min_tokens=2)[0] == "allowed_token_ids"
    for wrong in ([], [600], [-1], "a", [[1]], 5):
        assert refusal(url, path, allowed_token_ids=wrong)[0].startswith("allowed_token_ids")
