"""An answer sent back as history is accepted in each form of the server and the openai package, and the
template gets the same messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.api.test_tools import ASK, ASKED, CALL, MARKED, THINKER, WEATHER, says, serving
from tests.serving.http_support import FakeEngine

STRICT = (
    "{% for m in messages %}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}</tool_call>{% endfor %}"
    "{{ m.content }}<|im_end|>{% endfor %}{{ tools }}"
)
"""A template that accepts only arguments that are an object."""

LETTERS = st.text("ab é\n", max_size=8)
ARGUMENTS = st.sampled_from(
    ["{}", '{"city": "Paris é"}', '{"a": [1, {"b": null}]}', '{"a": ' + "[" * 60 + "]" * 60 + "}",
     '{"a": 1e999}', "[1]", '{"city": "Par', '"\\ud800"']
)  # fmt: skip
CALLS = ARGUMENTS.map(lambda one: f'<tool_call>\n{{"name": "weather", "arguments": {one}}}\n</tool_call>')
ANSWERS = st.builds(
    lambda thoughts, text, calls: "".join([f"<think>{thoughts}</think>" if thoughts else "", text, *calls]),
    LETTERS,
    LETTERS,
    st.lists(CALLS, max_size=2),
)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    with serving(THINKER, says("x")) as both:
        yield both


def added_up(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins the message of a stream: texts in order, calls by their index, the rest unchanged."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for part in delta.pop("tool_calls", ()):
            call = calls.setdefault(part["index"], {**part, "function": {"arguments": ""}})
            arguments = call["function"]["arguments"] + part["function"].pop("arguments", "")
            call["function"] |= {**part["function"], "arguments": arguments}
        for name, value in delta.items():
            joins = name != "role" and isinstance(message.get(name), str) and value is not None
            message[name] = message[name] + value if joins else value
    return message | ({"tool_calls": [calls[at] for at in sorted(calls)]} if calls else {})


def of_the_wire(url: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    answer = httpx.post(f"{url}chat/completions", json=asked).json()
    yield answer["choices"][0]["message"]
    lines = httpx.post(f"{url}chat/completions", json=asked | {"stream": True}).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    yield added_up([one["choices"][0]["delta"] for one in chunks if one["choices"]])


def of_the_package(client: openai.OpenAI, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    message = client.chat.completions.create(**asked).choices[0].message
    yield from (message.model_dump(), message.model_dump(exclude_none=True), message.to_dict())
    with client.chat.completions.stream(**asked) as stream, suppress(openai.LengthFinishReasonError):
        said = stream.get_final_completion().choices[0].message
        yield from (said.model_dump(), said.model_dump(mode="json", exclude_none=True))


def prompt(url: str, messages: list[dict[str, Any]], asked: dict[str, Any]) -> str:
    rendered = httpx.post(f"{url}chat/completions/render", json=asked | {"messages": messages})
    assert rendered.status_code == 200, (rendered.text, messages)
    return MARKED.decode(rendered.json()["token_ids"], skip_special_tokens=False)


def test_what_was_answered_comes_back_in_all_forms(served) -> None:
    client, engine = served
    url = str(client.base_url)

    @settings(max_examples=20, database=None)
    @given(ANSWERS, st.booleans(), st.booleans())
    def comes_back(text: str, tools: bool, cut: bool) -> None:
        engine.script = says(text, ends="length") if cut and text else says(text + "<|im_end|>")
        asked = ASKED if tools else {"model": "tiny", "messages": ASK, "max_tokens": 150}
        forms = [*of_the_wire(url, asked), *of_the_package(client, asked)]
        prompts = {prompt(url, [*ASK, one, *ASK], asked) for one in forms}
        assert len(prompts) == 1, forms
        said, (told,) = forms[0], prompts
        assert (said["content"] or "") in told
        assert all(one["function"]["name"] in told for one in said.get("tool_calls", ()))

    comes_back()


def call(arguments: str, **rest: object) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments, **rest}}


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"content": None},
        {"content": None, "refusal": None, "annotations": []},
        {"content": []},
        {"content": [], "tool_calls": [call("{}")]},
        {"content": None, "tool_calls": None, "function_call": None, "audio": None, "annotations": None},
        {"content": "", "tool_calls": []},
        {"content": None, "tool_calls": [call("{}", parsed_arguments={"a": 1}) | {"index": 0}]},
        {"content": "{}", "parsed": {"name": "Ann"}},
        {"content": None, "reasoning": None, "reasoning_content": None},
        {"content": [{"type": "text", "text": ""}]},
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "chat/completions/render"])
def test_an_answer_may_say_nothing(served, path: str, message: dict[str, Any]) -> None:
    client, engine = served
    engine.script = says("x<|im_end|>")
    messages = [*ASK, {"role": "assistant", **message}, *ASK]
    body = {"model": "tiny", "messages": messages, "tools": [WEATHER]}
    answer = httpx.post(f"{client.base_url}{path}", json=body)
    assert answer.status_code == 200, answer.text


def test_the_strict_client_takes_answers(served) -> None:
    """Checks answers with the types of the openai package."""
    client, engine = served
    engine.script = says(f"<think>hm</think>{CALL}<|im_end|>")
    with openai.OpenAI(base_url=client.base_url, api_key="-", _strict_response_validation=True) as strict:
        whole = strict.chat.completions.create(**ASKED).choices[0]
        chunks = [
            *strict.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
        ]
    assert (whole.finish_reason, chunks[-1].choices) == ("tool_calls", [])


def test_arguments_that_are_no_object_reach_a_template_that_wants_one() -> None:
    written = ['{"city": "Par', '{"city": "Paris"}']
    with serving(STRICT, says("x"), tool_call_parser="hermes") as (client, _):
        turn = {"role": "assistant", "content": None, "tool_calls": [call(one) for one in written]}
        body = {"model": "tiny", "tools": [WEATHER]}
        told = prompt(str(client.base_url), [*ASK, turn, turn, *ASK], body)
    assert (
        '<tool_call>weather arguments={"city": "Par</tool_call><tool_call>weather city=Paris</tool_call>'
        in told
    )
