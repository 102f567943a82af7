"""From constraints to grammars: their texts fit, and constraints that cannot be honoured are named."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from corepipe.errors import UserError
from corepipe.structured.constraints import (
    MAX_BYTES,
    Constraint,
    ConstraintError,
    StructuredOutputsParams,
    constraint_of,
)
from corepipe.structured.grammars import grammar_of
from tests.constrained.cases import Case, bounded_schemas, cases
from tests.constrained.walk import takes, walk
from tests.serving.http_support import tokenizer

CASES = cases(made_up=25, number=1)
DATE = grammar_of(Constraint("json_schema", '{"type": "string", "format": "date"}', ""))


def made(**asked: Any) -> str:
    return grammar_of(constraint_of(StructuredOutputsParams(**asked)))


def of_schema(schema: Any, **options: Any) -> str:
    return made(json=schema, **options)


def refusal(**asked: Any) -> ConstraintError:
    with pytest.raises(ConstraintError) as caught:
        made(**asked)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1200
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_comes_out_fits(case: Case) -> None:
    grammar, ended = made(**case.asked), 0
    for seed in range(3):
        text, whole = walk(grammar, tokenizer(), seed, 400)
        if whole:
            case.check(text)
            ended += 1
    assert ended or not case.bounded


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(bounded_schemas(), st.integers(0, 2**32))
def test_what_comes_out_of_any_schema_fits(schema: dict[str, Any], seed: int) -> None:
    text, ended = walk(of_schema(schema), tokenizer(), seed, 300)
    if ended:
        jsonschema.validate(json.loads(text), schema)


REFUSED: dict[str, tuple[Any, tuple[str, ...], str]] = {
    "uniqueItems": (
        {"properties": {"a": {"type": "array", "uniqueItems": True}}},
        ("properties", "a"),
        "unsupported_value",
    ),
    "not": ({"anyOf": [{}, {"not": {"type": "null"}}]}, ("anyOf", "1"), "unsupported_value"),
    "if": ({"items": {"if": {}, "then": {"type": "null"}}}, ("items",), "unsupported_value"),
    "contains": (
        {"$ref": "#/$defs/x", "$defs": {"x": {"contains": {}}}},
        ("$defs", "x"),
        "unsupported_value",
    ),
    "propertyNames": ({"propertyNames": {"pattern": "a"}}, (), "unsupported_value"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, (), "unsupported_value"),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, (), "unsupported_value"),
    "another document": (
        {"properties": {"a": {"$ref": "http://127.0.0.1/x"}}},
        ("properties", "a", "$ref"),
        "unsupported_value",
    ),
    "an anchor": (
        {"$ref": "#here", "$defs": {"x": {"$anchor": "here", "contains": {}}}},
        ("$defs", "x"),
        "unsupported_value",
    ),
    "no anchor": ({"items": {"$ref": "#here"}}, ("items", "$ref"), "invalid_value"),
    "nothing there": ({"$ref": "#/$defs/none"}, ("$ref",), "invalid_value"),
    "look-around": (
        {"properties": {"a": {"items": {"type": "string", "pattern": "^(?!x)y"}}}},
        ("properties", "a", "items"),
        "unsupported_value",
    ),
    "overlapping oneOf": (
        {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
        ("properties", "a"),
        "unsupported_value",
    ),
    "keys that may repeat": ({"type": "object", "minProperties": 2}, (), "unsupported_value"),
    "llguidance's own": ({"x-guidance": {"lenient": True}, "not": {}}, (), "unsupported_value"),
    "no type": ({"properties": {"a": {"type": "blob"}}}, ("properties", "a"), "invalid_value"),
    "no schema": ({"properties": {"a": 5}}, ("properties", "a"), "invalid_value"),
    "no map": ({"properties": []}, ("properties",), "invalid_value"),
    "nothing fits": (
        {
            "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}},
            "required": ["a"],
            "type": "object",
        },
        ("properties", "a"),
        "invalid_value",
    ),
    "without end": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        ("properties", "next"),
        "invalid_value",
    ),
    "itself": ({"$ref": "#"}, (), "invalid_value"),
    "in a circle": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        ("$defs", "b"),
        "invalid_value",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_where_it_stands(name: str) -> None:
    schema, path, code = REFUSED[name]
    error = refusal(json=schema)
    assert error.message.startswith(f"Invalid schema for structured_outputs.json: In context={path!r}, ")
    assert (error.param, error.code) == ("structured_outputs.json", code)


HARMLESS: tuple[Any, ...] = (
    {"type": "array", "uniqueItems": False, "items": {"type": "integer"}, "maxItems": 2},
    {"type": "object", "unevaluatedProperties": True, "properties": {}},
    {"type": "string", "format": "password", "maxLength": 3},
    {"type": "integer", "format": "int32"},
    {"type": "string", "nullable": True, "x-order": 5, "discriminator": {}, "maxLength": 3},
    {"$defs": {"unused": {"not": {}}}, "type": "boolean"},
    {"components": {"schemas": {"x": {"type": "null"}}}, "$ref": "#/components/schemas/x"},
    {"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
    {
        "allOf": [
            {"properties": {"a": {"type": "null"}}},
            {"properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "type": "object",
    },
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]},
    {"$anchor": "here", "type": "null"},
    {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 1,
        "exclusiveMinimum": True,
        "maximum": 3,
    },
)


@pytest.mark.parametrize("schema", HARMLESS, ids=lambda schema: json.dumps(schema)[:40])
def test_what_asks_for_nothing_is_accepted(schema: Any) -> None:
    of_schema(schema)


def test_unions_that_a_constant_tells_apart() -> None:
    kinds = {name: {"type": "object", "properties": {"k": {"const": name}}} for name in ("a", "b")}
    refs = [{"$ref": f"#/$defs/{name}"} for name in kinds]
    schema = {"oneOf": [*refs, {"type": "null"}], "$defs": kinds}
    grammar = of_schema(schema)
    assert takes(grammar, '{"k": "a"}')
    assert takes(grammar, "null")
    assert not takes(grammar, "{}"), "which fits both"
    jsonschema.validate({"k": "a"}, schema)


def test_white_space_is_bounded() -> None:
    grammar = of_schema({"type": "array", "items": {"type": "null"}})
    assert takes(grammar, "[ \n\t\r    null]")
    assert not takes(grammar, "[" + " " * 9 + "null]")
    assert not takes(grammar, "[]" + " " * 9)


@pytest.mark.parametrize(
    ("options", "fits", "unfit"),
    [
        ({"disable_any_whitespace": True}, "[null,null]", "[null, null]"),
        ({"whitespace_pattern": "[ ]?"}, "[ null ,null ]", "[  null]"),
        ({"whitespace_pattern": r"[\n\t ]{0,2}"}, "[\n\tnull]", "[\n\t null]"),
        ({"whitespace_pattern": r"\s{0,2}"}, "[\r\nnull]", "[\u00a0null]"),
        ({"whitespace_pattern": r"( |\n){0,2}"}, "[\n null]", "[\tnull]"),
    ],
)
def test_white_space_as_one_likes_it(options: dict[str, Any], fits: str, unfit: str) -> None:
    grammar = of_schema({"type": "array", "items": {"type": "null"}}, **options)
    assert takes(grammar, fits)
    assert not takes(grammar, unfit)


@pytest.mark.parametrize("pattern", [".*", "", "x", r"\S", r"[^a]", "[ ]{1,2", r"\w", r"[\x00-\x20]"])
def test_white_space_has_no_other_characters(pattern: str) -> None:
    error = refusal(json={}, whitespace_pattern=pattern)
    assert error.param in ("structured_outputs.whitespace_pattern", "structured_outputs.json")


def test_a_property_is_not_spelled_in_another_way() -> None:
    """A reader would take the last of two equal keys."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    anchored = {"$ref": "#here", "$defs": {"x": {"$anchor": "here", **schema}}}
    for wider in (schema, anchored, schema | {"additionalProperties": {"type": "string"}}):
        grammar = of_schema(wider)
        assert takes(grammar, '{"a": 1}')
        assert not takes(grammar, '{"a": 1, "a": "x"}')
        assert not takes(grammar, r'{"a": 1, "\u0061": "x"}')


def test_objects_are_closed_unless_they_are_said_to_be_open() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    assert not takes(of_schema(schema), '{"b": 1}')
    assert takes(of_schema(schema | {"additionalProperties": True}), '{"b": 1}')
    assert takes(of_schema(schema | {"required": ["b"]}), '{"b": 1}')
    both = {"type": "object", "allOf": [schema, {"properties": {"b": {"type": "null"}}}]}
    assert takes(of_schema(both), '{"a": null, "b": null}')
    assert not takes(of_schema(both), '{"c": null}')


@pytest.mark.parametrize("beside", [{"additionalProperties": True}, {"properties": {"b": {}}}])
def test_a_branch_that_mentions_keys_has_those_of_the_others_and_no_more(beside: dict[str, Any]) -> None:
    one = {"properties": {"a": {"type": "null"}}, "additionalProperties": False}
    grammar = of_schema({"type": "object", "anyOf": [one, beside]})
    assert takes(grammar, '{"a": 1}')
    assert not takes(grammar, '{"c": 1}')


def test_integers_have_bounds() -> None:
    assert takes(of_schema({"type": "integer"}), str(2**53 - 1))
    assert not takes(of_schema({"type": "integer"}), str(2**53))
    assert not takes(of_schema({"type": "integer", "format": "int32"}), str(2**31))
    assert takes(of_schema({"type": "integer", "minimum": 2**60, "maximum": 2**61}), str(2**61))
    assert takes(of_schema({"type": "integer", "enum": [2**60]}), str(2**60))


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (-(2**63), 2**63 - 1),
        (-(2**63) + 1, 2**64),
        (-3.4028234663852886e38, 3.4028234663852886e38),
        (-1.7976931348623157e308, 1.7976931348623157e308),
        (-(10**30), 10**30),
    ],
)
def test_bounds_of_other_languages_numbers_are_taken(least: float, most: float) -> None:
    """Schema generators write these bounds for every long, float and double."""
    for kind in ("integer", "number"):
        for names in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
            grammar = of_schema({"type": kind, **dict(zip(names, (least, most), strict=True))})
            assert all(takes(grammar, text) for text in ("0", "-5", str(2**53 - 1), str(1 - 2**53)))
            assert takes(grammar, "-0.25") == (kind == "number")


@pytest.mark.parametrize("least", [5e-324, 2.2250738585072014e-308])
def test_the_smallest_numbers_are_bounds(least: float) -> None:
    for name, sign in (
        ("minimum", ""),
        ("exclusiveMinimum", ""),
        ("maximum", "-"),
        ("exclusiveMaximum", "-"),
    ):
        grammar = of_schema({"type": "number", name: float(f"{sign}{least}")})
        assert takes(grammar, f"{sign}0.001")
        assert not takes(grammar, "0")


class Bag(BaseModel):
    items: set[int]


class Keyed(BaseModel):
    table: dict[int, int]


def test_of_pydantic_these_are_refused() -> None:
    """Decimal is refused, too, whose pattern has a lookahead in some versions."""
    assert "uniqueItems" in refusal(json=Bag).message
    decimal = {
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]
    }
    assert "look-around" in refusal(json=decimal).message


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 12), st.integers(28, 31))
def test_no_date_is_another_day(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        assert not takes(DATE, f'"{text}"')
    else:
        assert takes(DATE, f'"{text}"')


def test_a_table_with_keys_that_are_numbers() -> None:
    assert takes(of_schema(Keyed), '{"table": {"5": 5}}')


def test_regular_expressions_match_the_whole() -> None:
    for pattern in (r"\d{2}", r"^\d{2}$"):
        assert takes(made(regex=pattern), "12")
        assert not takes(made(regex=pattern), "123")


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"(a)\1", r"\bfoo\b", "(a", "[z-a]", "a{2,1}", " ", "a\0", r"[^\x00-\x{10FFFF}]"]
)
def test_regular_expressions_that_cannot_be(pattern: str) -> None:
    assert refusal(regex=pattern).param == "structured_outputs.regex"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=4))
def test_a_choice_is_one_of_them_as_it_stands(choices: list[str]) -> None:
    if any("\0" in one for one in choices):
        return
    grammar = made(choice=choices)
    assert all(takes(grammar, one) for one in choices)
    assert not takes(grammar, "".join(choices) + "x")


GRAMMARS = ('start: "a" | b\nb: "b" start', 'root ::= "a" | b\nb ::= "b" root')


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_grammars_of_both_syntaxes(grammar: str) -> None:
    assert takes(made(grammar=grammar), "bba")
    assert not takes(made(grammar=grammar), "bb")


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("start", "Expected"),
        ("start: x", "unknown name"),
        ('start: "a', "lexer error"),
        ("root ::= (", "Expected"),
        ("start: <|im_end|>", "special tokens"),
        ("start: <[5]>", "special tokens"),
        ("start: a\na[temperature=0.5]: /x/", "option temperature"),
        ("start: a\na[max_tokens=5, lazy]: /x/", "option max_tokens"),
        ('%llguidance {}\nstart: "a"', "%llguidance"),
        ("start: a\na: a", "nothing fits"),
        ('start: %json {"not": {}}', "not"),
        ("{}", "Expected"),
    ],
)
def test_grammars_that_cannot_be(grammar: str, words: str) -> None:
    error = refusal(grammar=grammar)
    assert words in error.message
    assert error.param == "structured_outputs.grammar"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "structured_outputs"),
        ({"json_object": False}, "structured_outputs"),
        ({"json": {}, "regex": "a"}, "structured_outputs.regex"),
        ({"json": 5}, "structured_outputs.json"),
        ({"json": "{"}, "structured_outputs.json"),
        ({"json": "[]"}, "structured_outputs.json"),
        ({"json": {"const": "\ud800"}}, "structured_outputs.json"),
        ({"regex": "\ud800"}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": "ab"}, "structured_outputs.choice"),
        ({"choice": ["a", 5]}, "structured_outputs.choice"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern",
        ),
        ({"regex": "a" * (MAX_BYTES + 1)}, "structured_outputs.regex"),
        ({"json": {"enum": ["\u20ac" * (MAX_BYTES // 2)]}}, "structured_outputs.json"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_one_thing_is_asked_for_and_said_as_it_must_be(asked: dict[str, Any], param: str) -> None:
    assert refusal(**asked).param == param


def test_a_schema_that_is_nested_too_deeply() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    assert "deep" in refusal(json=schema).message


def test_without_the_package_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match="needs the package llguidance"):
        made(json_object=True)
