"""Structural tags: their answers are free text and whole tags; tags that cannot be honoured are named."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.structured.constraints import ConstraintError, StructuredOutputsParams, constraint_of
from corepipe.structured.grammars import grammar_of
from corepipe.structured.spelling import Spelling
from corepipe.structured.structural_tags import MOST
from tests.constrained.cases import STEP, TAGGED, Case, cases
from tests.constrained.walk import takes, walk
from tests.serving.http_support import tokenizer

CASES = [case for case in cases(made_up=1, number=1) if "structural_tag" in case.asked]
STOP = {"type": "const_string", "value": "x"}


def of(document: Any, spelling: Spelling | None = None) -> str:
    constraint = constraint_of(StructuredOutputsParams(structural_tag=document))
    return grammar_of(constraint) if spelling is None else grammar_of(constraint, spelling)


def tag(begin: str, content: Any = STOP, end: str = "]") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_comes_out_fits(case: Case) -> None:
    """Answers are drawn at random from the masks; at least one ends, and another library judges it."""
    grammar, ended = of(case.asked["structural_tag"]), 0
    for seed in range(20):
        text, whole = walk(grammar, tokenizer(), seed, 400)
        if whole:
            case.check(text)
            ended += 1
    assert ended or not case.bounded


GO = '{"kind": "go", "count": 5}'
OLDER = {
    "structures": [{"begin": begin, "schema": one, "end": end} for begin, (one, end) in TAGGED.items()],
    "triggers": ["<st", "<size"],
}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", True),
        ("Plain text, with a < and a <s", True),
        (f"One: <step>{GO}</step> and <size of it>-5</size>.", True),
        (f"<step>{GO}</step><step>{GO}</step>", True),
        (f"<step>{GO}", False),
        ("<step>{}</step>", False),
        ("<stop>", False),
        ("<st", False),
        ("<size of it>100</size>", False),
        (f"<<step>{GO}</step>", True),
        (f"<s<step>{GO}</step> <", True),
    ],
)
def test_text_is_free_until_a_trigger(text: str, taken: bool) -> None:
    assert takes(of(OLDER), text) is taken
    assert takes(of(json.dumps({"type": "structural_tag", **OLDER})), text) is taken


NEWER: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "tag": (tag("[a "), ("[a x]",), ("", "[a x", "x", "[a x] ")),
    "any text": ({"type": "any_text"}, ("", "anything < at\nall"), ()),
    "text in a tag": (tag("<a>", {"type": "any_text"}, "</a>"), ("<a>1 < 2\n</</a>",), ("<a>", "<a></a> ")),
    "sequence": (
        {"type": "sequence", "elements": [STOP, {"type": "or", "elements": [STOP, tag("[")]}]},
        ("xx", "x[x]"),
        ("x", "xxx", "[x]"),
    ),
    "triggered": (
        {
            "type": "triggered_tags",
            "triggers": ["[", "{{"],
            "tags": [tag("[a"), tag("[b"), tag("{{c", end="}}")],
        },
        ("", "free", "[ax]", "a[bx]{{cx}}d { "),
        ("[", "[c", "[axx", "{{a", "a [[ax]"),
    ),
    "at least one": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [tag("[a")], "at_least_one": True},
        ("[ax]", "[ax] free [ax]"),
        ("", "free", "free [ax]"),
    ),
    "the first alone": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [tag("[a")], "stop_after_first": True},
        ("", "free", "free [ax]"),
        ("[ax] free", "[ax][ax]"),
    ),
    "one alone": (
        {
            "type": "triggered_tags",
            "triggers": ["["],
            "tags": [tag("[a")],
            "at_least_one": True,
            "stop_after_first": True,
        },
        ("[ax]",),
        ("", "free", "[ax] "),
    ),
    "a trigger that begins another": (
        {"type": "triggered_tags", "triggers": ["[a", "["], "tags": [tag("[a"), tag("[b")]},
        ("[ax] [bx]",),
        ("[c",),
    ),
    "separated": (
        {"type": "tags_with_separator", "tags": [tag("[a"), tag("[b")], "separator": ";"},
        ("", "[ax]", "[ax];[bx];[ax]"),
        (";", "[ax];", "[ax][bx]"),
    ),
    "JSON to the end": (
        tag("call ", {"type": "json_schema", "json_schema": STEP}, ""),
        (f"call {GO}",),
        ("call {}", f"call {GO}x"),
    ),
    "without a type of their own": (
        {"type": "triggered_tags", "triggers": ["["], "tags": [{"begin": "[a", "content": STOP, "end": "]"}]},
        ("[ax]",),
        ("[b",),
    ),
    "odd characters": (
        {
            "type": "triggered_tags",
            "triggers": ["\x7f/\\", "€\n"],
            "tags": [tag("\x7f/\\\U0001f600"), tag('€\n"')],
        },
        ("a\x7f/\\\U0001f600x]", 'a€\n"x]', "€"),
        ("\x7f/\\", "€\n "),
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_the_newer_formats(name: str) -> None:
    form, good, bad = NEWER[name]
    grammar = of({"format": form})
    assert {text: takes(grammar, text) for text in good} == dict.fromkeys(good, True)
    assert {text: takes(grammar, text) for text in bad} == dict.fromkeys(bad, False)


def refusal(document: Any) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        of(document)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1200
    assert caught.value.param == "structured_outputs.structural_tag"
    return caught.value


def nested(depth: int) -> Any:
    form: Any = STOP
    for _ in range(depth):
        form = {"type": "or", "elements": [form]}
    return form


REFUSED: dict[str, tuple[Any, str, str]] = {
    "nothing": ({}, "missing required field `format`", "invalid_value"),
    "no JSON": ("<a>", "it is not JSON", "invalid_value"),
    "no object": ("[]", "it must be a JSON object", "invalid_value"),
    "both forms": ({**OLDER, "format": STOP}, "unknown field `format`", "invalid_value"),
    "another type": ({"type": "text", **OLDER}, "type", "invalid_value"),
    "no triggers": ({"structures": OLDER["structures"]}, "required field `triggers`", "invalid_value"),
    "no tags": ({"structures": [], "triggers": ["<"]}, "('structures',)", "invalid_value"),
    "an empty trigger": ({**OLDER, "triggers": [""]}, "('triggers', '0')", "invalid_value"),
    "a tag without trigger": (
        {**OLDER, "triggers": ["<st"]},
        "('structures', '1', 'begin'), it begins with none of the triggers",
        "invalid_value",
    ),
    "a schema": (
        {"structures": [{"begin": "<", "schema": {"items": {"not": {}}}, "end": ""}], "triggers": ["<"]},
        "('structures', '0', 'schema', 'items'), 'not' is not permitted",
        "unsupported_value",
    ),
    "a pattern": (
        {"format": tag("<", {"type": "json_schema", "json_schema": {"type": "string", "pattern": "(?=a)"}})},
        "('format', 'content', 'json_schema'), look-around",
        "unsupported_value",
    ),
    "a schema's form": (
        {"format": tag("<", {"type": "json_schema", "json_schema": {"properties": 5}})},
        "('format', 'content', 'json_schema', 'properties'), it must be an object",
        "invalid_value",
    ),
    "a regex": (
        {"format": tag("<", {"type": "regex", "pattern": "a"})},
        "('format', 'content', 'type'), a format 'regex' is not supported",
        "unsupported_value",
    ),
    "a number": ({"format": 5}, "('format',)", "invalid_value"),
    "text in between": (
        {"format": {"type": "sequence", "elements": [{"type": "any_text"}, STOP]}},
        "'any_text' is supported as the content of a tag alone",
        "unsupported_value",
    ),
    "triggers in between": (
        {"format": tag("<", {"type": "triggered_tags", "triggers": ["<"], "tags": [tag("<")]})},
        "'triggered_tags' is supported where nothing follows alone",
        "unsupported_value",
    ),
    "text without end": ({"format": tag("<", {"type": "any_text"}, "")}, "needs an end", "invalid_value"),
    "deep": ({"format": nested(80)}, "it is nested more than 64 deep", "unsupported_value"),
    "more tags than may be": (
        {"format": {"type": "or", "elements": [STOP] * (MOST + 1)}},
        "('format', 'elements')",
        "invalid_value",
    ),
    "a long text": ({"format": tag("<" * 2000)}, "('format', 'begin')", "invalid_value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_refused_by_name(name: str) -> None:
    document, words, code = REFUSED[name]
    error = refusal(document)
    assert words in error.message
    assert error.code == code


def test_texts_that_the_model_cannot_write_are_refused() -> None:
    spelling = Spelling(missing=b"\xf1", absent=b"\xf1")
    gone = "\U00040000"
    for document, path in (
        ({"format": tag(f"<{gone}>")}, "('format', 'begin')"),
        ({"format": tag("<", end=gone)}, "('format', 'end')"),
        ({"format": tag("<", {"type": "any_text"}, end=gone)}, "('format', 'end')"),
        (
            {"structures": [{"begin": "<a", "schema": {"const": gone}, "end": ""}], "triggers": ["<"]},
            "('structures', '0', 'schema', 'const')",
        ),
    ):
        with pytest.raises(ConstraintError) as caught:
            of(document, spelling)
        assert f"In context={path}, the model has no tokens for U+40000" in caught.value.message


def test_special_tokens_are_written_as_themselves() -> None:
    """Free text cannot contain one: a trigger or a text that has one is written as that token."""
    mark, spelling = "<|im_start|>", Spelling.of(tokenizer())
    assert mark in spelling.added
    called = tag(mark + "a", {"type": "json_schema", "json_schema": STEP}, "]")
    once = {"type": "triggered_tags", "triggers": [mark], "tags": [called], "stop_after_first": True}
    for form in (
        {**once, "at_least_one": True},
        {"type": "sequence", "elements": [tag("<", {"type": "any_text"}, mark), called]},
        {"type": "sequence", "elements": [STOP, {**once, "tags": [called, tag(mark + "b")]}]},
    ):
        grammar, ended = of({"format": form}, spelling), 0
        assert f"<[{spelling.added[mark]}]>" in grammar
        for seed in range(10):
            text, whole = walk(grammar, tokenizer(), seed, 300)
            if whole:
                _, called_it, last = text.partition(mark + "a")
                assert not called_it or json.loads(last.removesuffix("]"))["kind"] in ("go", "stop")
                ended += 1
        assert ended


NAMES = (
    *("type", "format", "begin", "end", "content", "tags", "triggers", "elements", "structures", "schema"),
    *("json_schema", "value", "separator"),
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["tag", "or"])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "format", "structures", "triggers"]), JSON, max_size=3))
def test_whatever_comes_is_a_grammar_or_a_refusal(document: dict[str, Any]) -> None:
    with contextlib.suppress(ConstraintError):
        assert of(document)
