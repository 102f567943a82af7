"""Texts with private characters behave like the originals, and keep their characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.models.text.client_text import ClientText, ClientTextExchange, PrivateCharacters

EXCHANGE = ClientTextExchange(PrivateCharacters("</>think|_", 0xF0000))
CHARACTERS = "</>tk|_ \nTKx\u00df\u0130"

texts = st.text(CHARACTERS, max_size=8)
masks = st.lists(st.booleans(), min_size=8, max_size=8)
numbers = st.integers(-1, 3)


def mixed(text: str, mask: list[bool]) -> ClientText:
    """Returns a text of which some characters are a client's."""
    pairs = zip(text, mask, strict=False)
    return ClientText.of("".join(c.translate(EXCHANGE.there) if own else c for c, own in pairs), EXCHANGE)


def plain(value: object) -> object:
    """Returns a result with the original characters."""
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return EXCHANGE.plain(value)


CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    **{name: lambda t, s, _, name=name: getattr(t, name)(s) for name in (
        *("count", "endswith", "find", "rfind", "startswith", "strip", "lstrip", "rstrip"),
        *("removeprefix", "removesuffix", "__add__", "__contains__", "__eq__", "__ne__", "__lt__"),
    )},
    **{name: lambda t, _, __, name=name: getattr(t, name)() for name in (
        *("split", "splitlines", "strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize"),
        *("swapcase", "casefold", "isdigit", "isupper", "__len__", "__hash__", "__str__"),
    )},
    "split by": lambda t, s, n: t.split(s or "|", n),
    "rsplit by": lambda t, s, n: t.rsplit(s or "|", n),
    **{name: lambda t, s, _, name=name: getattr(t, name)(s or "|") for name in ("partition", "rpartition")},
    "either": lambda t, s, _: t.startswith((s, "k")),
    "replace": lambda t, s, n: t.replace(s, "<x>", n),
    "after": lambda t, s, _: s + t,
    "slice": lambda t, _, n: t[n:] + t[:n],
    "characters": lambda t, _, __: list(t),
    "known": lambda t, s, _: {s: 1}.get(t),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@given(text=texts, mask=masks, other=texts, number=numbers)
def test_it_acts_as_what_it_stands_for(call, text, mask, other, number):
    said = mixed(text, mask)
    for words in (other, mixed(other, mask[::-1])):
        assert plain(CALLS[call](said, words, number)) == CALLS[call](text, other, number)


@given(text=texts, mask=masks, other=texts)
def test_a_part_keeps_its_characters(text, mask, other):
    said, by = mixed(text, mask), other or "|"
    assert "".join(by.join(said.split(by)).split(by)) == "".join(said.split(by))
    assert "".join(said.partition(by)) == str.__str__(said)
    assert said.strip(other) in str.__str__(said)
    assert [type(one) for one in said.split(by)] == [ClientText] * (text.count(by) + 1)


def test_a_whole_conversation_is_exchanged_but_for_roles_and_plain_names():
    said = EXCHANGE.exchanged({"role": "think", "content": ["<k", {"name": "x", "<b>": 5}], "role.": "t"})
    assert said["role"] == "think"
    assert type(said["content"][0]) is ClientText
    assert said["content"][1]["<b>"] == 5
    assert list(said) == ["role", "content", "role."]
    assert EXCHANGE.kept("plain") == "plain"
    assert type(EXCHANGE.kept("a" + str.__str__(said["content"][0]))) is ClientText
