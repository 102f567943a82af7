"""From text to parts: calls of each format, texts that are none, and equal parts in whatever pieces."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.answers.parsing.formats import FORMATS
from corepipe.answers.parsing.text_stream import MAX_HELD
from corepipe.answers.parts import CallArguments, CallStart, Detokenizer, Finish, Pieces, Reasoning, Text
from tests.answers.cases import (
    CALLS,
    F1,
    NEAR_MISSES,
    ONE,
    TOOLS,
    Read,
    called,
    parts_of,
    read,
    reading_of,
    splits,
)
from tests.serving.http_support import tokenizer

HERMES = reading_of("hermes")
THINKER = reading_of("hermes", reasoning="qwen3")


@pytest.mark.parametrize(("name", "text", "meant"), CALLS)
def test_calls_however_they_are_cut(name, text, meant):
    reading = reading_of(name)
    assert read(reading, text) == meant
    for pieces in splits(text):
        assert read(reading, *pieces) == meant, pieces
    for _, arguments in meant.calls:
        assert isinstance(json.loads(arguments), dict)


def test_every_format_has_a_case():
    aliases = {"qwen3_json": "hermes", "qwen3_xml": "qwen3_coder", "llama4_json": "llama3_json"}
    assert {aliases.get(name, name) for name in FORMATS} <= {name for name, *_ in CALLS}


@pytest.mark.parametrize(("name", "text"), NEAR_MISSES)
def test_what_looks_like_a_call_and_is_none_stays_text(name, text):
    reading = reading_of(name)
    assert read(reading, text) == Read(text)
    for pieces in splits(text) if len(text) < 1000 else ([text[:99], text[99:]],):
        assert read(reading, *pieces) == Read(text), pieces


@pytest.mark.parametrize(("name", "text", "meant"), CALLS)
def test_cut_at_every_byte_and_every_token(name, text, meant):
    """The text comes through the detokenizer, like the tokens of an engine."""
    ids = tokenizer().encode(text, add_special_tokens=False)
    pieces = Pieces(tokenizer(), skip_special_tokens=False)
    detokenizer = Detokenizer(pieces)
    assert read(reading_of(name), *(detokenizer.feed([one])[0] for one in ids)) == meant
    alone, bytewise = Pieces(_Bytes(), skip_special_tokens=False), text.encode()
    detokenizer = Detokenizer(alone)
    assert read(reading_of(name), *(detokenizer.feed([one])[0] for one in bytewise)) == meant


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, skip_special_tokens=True):
        return bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self, token):
        return bytes([token])


MARKS = sorted({mark for one in FORMATS.values() for mark in one.markers} | {"<think>", "</think>"})
WORDS = [
    *MARKS, ONE, "f(a=1)", '{"name": "f", ', '"arguments": {"a": 1}', '"parameters": ', "{", "}", "[", "]",
    ",", ";", ":", '"', "\\", "\n", " ", "f", "get-x.y", "a", "é", "1", "null", "<", "</", "=", ">", "(", ")",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(WORDS), max_size=24).map("".join)


@given(
    name=st.sampled_from(["", *FORMATS]),
    text=TEXTS,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    reasoning=st.sampled_from([None, "qwen3"]),
    finish=st.sampled_from(["stop", "length"]),
    single=st.booleans(),
)
@settings(deadline=None, max_examples=600)
def test_the_parts_are_the_same_however_the_text_comes(name, text, cuts, reasoning, finish, single):
    reading = reading_of(name, reasoning=reasoning, single=single)
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(at)]
    whole = read(reading, text, finish=finish)
    assert read(reading, *pieces, finish=finish) == whole
    assert read(reading, *text, finish=finish) == whole
    if not whole.calls and not whole.reasoning and reasoning is None:
        assert whole == Read(text, finish=finish)
    assert all(called_name in TOOLS for called_name, _ in whole.calls)
    assert len(whole.calls) <= 1 or not single


def test_what_is_held_back_is_bounded():
    """An endless opening and endless white space are passed on after a limit."""
    for start in (
        '<tool_call>{"name": "',
        '<tool_call>{"x": "',
        '<tool_call>{"arguments": {"a": "',
        "<tool_call>  ",
        " ",
    ):
        fill = " " if start.endswith(" ") else "x"
        text = start + fill * (3 * MAX_HELD)
        shown = sum(len(one.text) for one in parts_of(HERMES, [text])[:-1])
        assert shown == len(text)
        parts = parts_of(HERMES, [start, *[fill * 1000] * (3 * MAX_HELD // 1000)])
        longest = max(len(one.text) for one in parts[:-1])
        assert longest <= MAX_HELD + 1100
        assert read(HERMES, text) == read(HERMES, *[text[at : at + 999] for at in range(0, len(text), 999)])


def test_arguments_come_as_they_are_written():
    pieces = ["<tool_call>", '{"name": "f", "arg', 'uments": {"s"', ': "ab', 'c"}', "}</tool_call>"]
    told = parts_of(HERMES, pieces)
    start, *arguments, finish = told
    assert isinstance(start, CallStart)
    assert [one.text for one in arguments] == ['{"s"', ': "ab', 'c"}']
    assert all(isinstance(one, CallArguments) and one.index == 0 for one in arguments)
    assert finish == Finish(0, "tool_calls")


def test_text_of_a_tag_comes_as_it_is_written():
    pieces = [
        "<tool_call><function=f><parameter=s>",
        "\nline 1\n",
        "line 2",
        "\n</par",
        "ameter></function></tool_call>",
    ]
    told = [one.text for one in parts_of(reading_of("qwen3_coder"), pieces) if isinstance(one, CallArguments)]
    assert told == ['{"s": ', '"line 1', "\\nline 2", '"}']


def test_calls_are_numbered_and_have_ids_of_their_own():
    told = parts_of(HERMES, [f"<tool_call>{ONE}</tool_call>" * 3])
    starts = [one for one in told if isinstance(one, CallStart)]
    assert [one.index for one in starts] == [0, 1, 2]
    assert len({one.id for one in starts}) == 3
    assert all(one.id.startswith("call_") and one.id[5:].isalnum() for one in starts)
    mistral = parts_of(reading_of("mistral"), ['[TOOL_CALLS]f[ARGS]{"a": 1}'])
    assert len(mistral[0].id) == 9
    assert mistral[0].id.isalnum()


def test_how_it_ended():
    call = f"<tool_call>{ONE}</tool_call>"
    assert read(HERMES, call, finish="length").finish == "length"
    assert read(HERMES, call.partition("}}")[0], finish="length") == Read(
        calls=(("f", '{"a": 1'),), finish="length"
    )
    assert read(reading_of("hermes", named=True), call).finish == "stop"
    assert read(HERMES, "text").finish == "stop"


def test_one_call_is_enough_where_one_is_wanted():
    single = reading_of("hermes", single=True)
    for text in (
        f"<tool_call>{ONE}</tool_call>\n<tool_call>{ONE}",
        f"<tool_call>[{ONE}, {ONE}]</tool_call> x",
    ):
        for pieces in splits(text):
            assert read(single, *pieces) == called(F1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("<think>\nhm, <tool_call>\n</think>\n\nSo.", Read("So.", reasoning="hm, <tool_call>")),
        ("\n<think>hm</think>So.", Read("So.", reasoning="hm")),
        (f"<think>hm</think>\n\n<tool_call>{ONE}</tool_call>", called(F1, reasoning="hm")),
        ("<think>never ends \n", Read(reasoning="never ends")),
        ("<think>\n\n</think>\n\nSo.", Read("So.")),
        ("The tag <think> is text here </think>.", Read("The tag <think> is text here </think>.")),
        ("<thinking>", Read("<thinking>")),
        ("<thi", Read("<thi")),
    ],
)
def test_reasoning(text, meant):
    for pieces in splits(text):
        assert read(THINKER, *pieces) == meant


def test_a_prompt_that_opened_the_reasoning_or_closed_it():
    inside = reading_of("hermes", reasoning="qwen3", thinking=True)
    closed = reading_of("hermes", reasoning="qwen3", thought=True)
    for pieces in splits("\nhm\n</think>\n\nSo."):
        assert read(inside, *pieces) == Read("So.", reasoning="hm")
    for pieces in splits("So <think>."):
        assert read(closed, *pieces) == Read("So <think>.")
    assert read(closed, "<think>x") == Read("<think>x")
    assert read(inside, "x", finish="length") == Read(reasoning="x", finish="length")


def test_reasoning_comes_first_and_never_with_text():
    told = parts_of(THINKER, ["<think>a", "b</thi", "nk>\n\nc", "d"])
    assert [type(one) for one in told] == [Reasoning, Reasoning, Text, Text, Finish]


def test_a_second_call_after_the_first_one_is_broken():
    broken = '<tool_call>{"name": "f", "arguments": {"a": 1 </tool_call>'
    assert read(HERMES, f"{broken}<tool_call>{ONE}</tool_call>").calls == (("f", '{"a": 1 '), F1)
