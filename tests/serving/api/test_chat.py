"""Messages become plain text, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from corepipe.serving.api.bodies.messages import TemplateMessage, joined_messages, plain_messages
from corepipe.serving.api.bodies.reading import read
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.routes.chat import ChatRequest


def plain(messages: list[Any]) -> list[TemplateMessage]:
    """Returns the messages of a body as templates take them."""
    body, _ = read({"model": "tiny", "messages": messages}, ChatRequest, strict=False)
    return plain_messages(body.messages)


def test_parts_stay_parts_and_developers_are_the_system():
    messages = [
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "Ann",
        },
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": [], "annotations": []},
    ]
    assert plain(messages) == [
        {"role": "system", "content": "be kind"},
        {**messages[1]},
        {"role": "assistant", "content": ""},
    ]


def test_reasoning_goes_by_all_its_names():
    for name in ("reasoning", "reasoning_content"):
        (turn,) = plain([{"role": "assistant", "content": "a", name: "hm"}])
        assert (turn["reasoning"], turn["reasoning_content"], turn["thinking"]) == ("hm", "hm", "hm")


def test_what_litellm_adds_to_an_answer_may_come_back():
    kept = {"refusal": None, "annotations": []}
    message = {"role": "assistant", "content": "x", "provider_specific_fields": kept}
    assert plain([message]) == [{"role": "assistant", "content": "x"}]
    with pytest.raises(ApiError) as caught:
        plain([message | {"provider_specific_fields": "text"}])
    assert caught.value.param == "messages[0].provider_specific_fields"


def test_calls_and_their_results():
    """Arguments are an object for the template; other text that a model wrote stays unchanged, and so does an
    object nested too deeply for templates."""
    deep = '{"a": ' + "[" * 50 + "]" * 50 + "}"
    written = ['{"a": {"b": [1]}}', "", "{broken", "[1]", deep]
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": one}} for one in written]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "5"}]},
    ]
    first, second = plain(messages)
    assert (first["content"], first["reasoning"], first["reasoning_content"]) == ("", "hm", "hm")
    told = [one["function"]["arguments"] for one in first["tool_calls"]]
    assert told == [{"a": {"b": [1]}}, {}, "{broken", "[1]", deep]
    assert second == messages[1]
    assert joined_messages([second, second, first, first]) == [second, second, first, first]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": "tool"}, "messages[0].content"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "a"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "reasoning": "a"}, "messages[0].reasoning"),
        ({"role": "assistant", "content": "x", "reasoning": 5}, "messages[0].reasoning"),
        ({"role": "tool", "content": None}, "messages[0].content"),
        ({"role": "tool", "content": []}, "messages[0].content"),
        ({"role": "system", "content": []}, "messages[0].content"),
        ({"role": "assistant", "content": {}}, "messages[0].content"),
        ({"role": "assistant", "content": False}, "messages[0].content"),
        ({"role": "assistant", "content": 0}, "messages[0].content"),
        ({"role": "assistant", "content": [[]]}, "messages[0].content[0]"),
        ({"role": 3, "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": "x", "name": 1}, "messages[0].name"),
        ({"role": "user", "content": "x", "weight": 1}, "messages[0].weight"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "content": "x", "tool_calls": {}}, "messages[0].tool_calls"),
    ],
)
def test_what_is_not_text_is_refused(message, param):
    with pytest.raises(ApiError) as caught:
        plain([message])
    assert (caught.value.status, caught.value.param) == (400, param)


def test_no_messages():
    with pytest.raises(ApiError, match="empty"):
        plain([])


def test_messages_of_one_speaker_are_joined():
    user, other = {"role": "user"}, {"role": "user", "name": "Ann"}
    messages = [
        user | {"content": "a"},
        user | {"content": "b"},
        other | {"content": "c"},
        user | {"content": "d"},
    ]
    assert joined_messages(messages) == [
        user | {"content": "a\n\nb"},
        other | {"content": "c"},
        user | {"content": "d"},
    ]
    assert messages[0]["content"] == "a"
