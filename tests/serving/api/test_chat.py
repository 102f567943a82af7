"""Messages become plain text, or are refused by name."""

from __future__ import annotations

import pytest

from corepipe.serving.api.chat import joined, plain_messages
from corepipe.serving.api.http_errors import ApiError


def test_parts_are_joined_and_developers_are_the_system():
    messages = [
        {"role": "developer", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "Ann",
        },
        {"role": "assistant", "content": "", "refusal": None, "tool_calls": [], "annotations": []},
    ]
    assert plain_messages(messages) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
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
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ],
)
def test_what_is_not_text_is_refused(message, param):
    with pytest.raises(ApiError) as caught:
        plain_messages([message])
    assert (caught.value.status, caught.value.param) == (400, param)


def test_no_messages():
    with pytest.raises(ApiError, match="empty"):
        plain_messages([])


def test_messages_of_one_speaker_are_joined():
    user, other = {"role": "user"}, {"role": "user", "name": "Ann"}
    messages = [
        user | {"content": "a"},
        user | {"content": "b"},
        other | {"content": "c"},
        user | {"content": "d"},
    ]
    assert joined(messages) == [
        user | {"content": "a\n\nb"},
        other | {"content": "c"},
        user | {"content": "d"},
    ]
    assert messages[0]["content"] == "a"
