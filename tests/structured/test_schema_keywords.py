"""Keywords that no grammar can express: accepted where they exclude nothing, refused where they may."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corepipe.structured.constraints import ConstraintError
from corepipe.structured.schema_keywords import ASSERTED
from tests.constrained.walk import takes, walk
from tests.serving.http_support import tokenizer
from tests.structured.test_grammars import of_schema, refusal

NAME = {"$defs": {"name": {"type": ["string", "null"], "title": "Name"}, "short": {"maxLength": 3}}}
TAKEN: tuple[tuple[dict[str, Any], str], ...] = (
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}},
        '{"a": null}',
    ),
    ({"type": "object", "propertyNames": True}, '{"a": 1}'),
    ({"type": "object", "propertyNames": {}}, "{}"),
    ({"type": "object", "propertyNames": {"minLength": 0, "pattern": "", "description": "any"}}, '{"": 1}'),
    ({"type": "object", "propertyNames": {"minimum": 5, "format": "password"}}, "{}"),
    ({"type": "object", "propertyNames": {"type": "string", "x-order": 1}}, "{}"),
    ({"type": "object", "propertyNames": {"allOf": [{}, {"type": "string"}]}}, "{}"),
    ({"type": "object", "propertyNames": {"anyOf": [{"maxLength": 3}, {"type": "string"}]}}, "{}"),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/name"}, **NAME}, "{}"),
    ({"type": "string", "propertyNames": False, "maxLength": 2}, '"a"'),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, "[1]"),
    ({"type": "array", "uniqueItems": True, "maxItems": 1.0}, "[1]"),
    ({"type": "object", "uniqueItems": True}, "{}"),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 0}, "[1]"),
    ({"type": "array", "minContains": 3, "maxContains": 4}, "[1]"),
    ({"type": "string", "contains": {}, "minContains": 1}, '"a"'),
    ({"type": "array", "items": {"type": "null"}, "unevaluatedItems": False}, "[null]"),
    (
        {"type": "object", "additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
        '{"a": null}',
    ),
    ({"type": "object", "unevaluatedProperties": {}}, '{"a": 1}'),
    ({"type": "object", "dependentRequired": {}}, '{"a": 1}'),
    ({"type": "object", "dependentRequired": {"a": []}}, '{"a": 1}'),
    (
        {"type": "object", "properties": {"b": {}}, "required": ["b"], "dependentRequired": {"a": ["b"]}},
        '{"b": 1}',
    ),
    ({"type": "object", "dependentSchemas": {"a": True}}, '{"a": 1}'),
    ({"type": "object", "dependencies": {"a": [], "b": {}}}, '{"a": 1}'),
    ({"type": "integer", "if": {"minimum": 5}}, "5"),
    ({"type": "integer", "if": {"minimum": 5}, "then": {}, "else": True}, "5"),
    ({"type": "integer", "then": {"minimum": 5}, "else": False}, "4"),
    ({"type": "integer", "not": False}, "4"),
    ({"type": "integer", "not": {"type": "string"}}, "4"),
    ({"type": "integer", "not": {"not": {}}}, "4"),
    ({"type": "string", "not": {"type": ["null", "integer"]}}, '"a"'),
    ({"type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "null"}}, '"a"'),
    ({"$dynamicAnchor": "here", "$recursiveAnchor": "here", "type": "null"}, "null"),
    ({"type": "string", "minProperties": 5}, '"a"'),
    (
        {"type": "object", "patternProperties": {"^a$": {"type": "null"}}, "additionalProperties": {}},
        '{"a": null}',
    ),
    ({"type": "array", "minItems": 1.0, "maxItems": 2.0}, "[1, 2]"),
    ({"type": "string", "minLength": 1.0, "maxLength": 1e0}, '"a"'),
)
REFUSED: tuple[dict[str, Any], ...] = (
    {"propertyNames": {"type": "string", "minLength": 1}},
    {"propertyNames": {"type": "integer"}},
    {"propertyNames": {"enum": ["a"]}},
    {"propertyNames": {"format": "uuid"}},
    {"propertyNames": {"$ref": "#/$defs/short"}, **NAME},
    {"propertyNames": {"$ref": "#/propertyNames"}},
    {"propertyNames": {"$ref": "http://127.0.0.1/x"}},
    {"propertyNames": {"$ref": ["#"]}},
    {"propertyNames": {"allOf": 5}},
    {"propertyNames": {"type": {}}},
    {"propertyNames": {"allOf": [{"type": "string"}, {"pattern": "^a"}]}},
    {"propertyNames": False},
    {"propertyNames": 5},
    {"type": ["array", "null"], "uniqueItems": True},
    {"type": "array", "uniqueItems": True, "maxItems": 2},
    {"contains": {}, "minContains": 0, "maxContains": 1},
    {"contains": {}},
    {"prefixItems": [{}], "unevaluatedItems": False},
    {"unevaluatedProperties": False},
    {"unevaluatedProperties": False, "additionalProperties": None},
    {"unevaluatedItems": False, "items": None},
    {"if": {}, "then": None, "else": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentRequired": ["a"]},
    {"dependentSchemas": {"a": {"required": ["b"]}}},
    {"dependencies": {"a": ["b"]}, "required": ["c"]},
    {"dependencies": {"a": [["b"]]}, "required": ["b"]},
    {"extends": {"$ref": "#"}},
    {"dependentSchemas": {"a": {"$ref": "#"}}},
    {"if": {}, "then": {"type": "null"}},
    {"if": {}, "else": False},
    {"type": "string", "not": {"type": "string", "maxLength": 2}},
    {"type": "integer", "not": {"type": "number"}},
    {"not": {}},
    {"$dynamicRef": "#here"},
    {"minProperties": 2.0},
)  # fmt: skip


@pytest.mark.parametrize(("schema", "text"), TAKEN, ids=lambda value: str(value)[:60])
def test_what_excludes_nothing_is_taken(schema: dict[str, Any], text: str) -> None:
    jsonschema.validate(json.loads(text), schema)
    assert takes(of_schema(schema), text)


@pytest.mark.parametrize("key", sorted(ASSERTED.keys() - {"const", "type", "properties"}))
def test_null_is_as_if_the_keyword_were_not_there(key: str) -> None:
    """Programs that write every field write it so."""
    for schema in ({"type": "object"}, {"type": "object", "properties": {"a": {"type": "integer"}}}):
        assert takes(of_schema(schema | {key: None}), '{"a": 1}')


@pytest.mark.parametrize("schema", REFUSED, ids=lambda schema: str(schema)[:60])
def test_what_may_exclude_something_is_refused(schema: dict[str, Any]) -> None:
    assert refusal(json=schema).code == "unsupported_value"


INNER = st.sampled_from(
    [
        True,
        False,
        {},
        {"type": "string"},
        {"type": "object"},
        {"type": "null"},
        {"maxLength": 1},
        {"required": ["b"]},
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("contains", "else", "if", "not", "propertyNames", "then"), INNER),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), INNER),
    "uniqueItems": st.booleans(),
    **dict.fromkeys(("minContains", "maxContains"), st.integers(0, 2)),
    "dependentRequired": st.sampled_from([{}, {"a": []}, {"a": ["b"]}]),
    "dependentSchemas": st.dictionaries(st.just("a"), INNER),
}
KINDS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
    {
        "type": "object",
        "properties": {"b": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
    {"type": "string", "maxLength": 2},
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), st.fixed_dictionaries({}, optional=VALUES), st.integers(0, 9))
def test_answers_fit_the_keywords_that_are_taken(
    base: dict[str, Any], beside: dict[str, Any], seed: int
) -> None:
    schema = base | beside
    try:
        grammar = of_schema(schema)
    except ConstraintError:
        return
    for number in range(seed, seed + 3):
        text, ended = walk(grammar, tokenizer(), number, 60)
        if ended:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))


ODD = st.sampled_from(
    [None, True, False, 0, -1, 2.0, 1.5, 1e300, "", "x", "#", "#/x", "date", "uint8", [], {}, ["a"], [1],
     [[]], [{}], {"a": 5}, {"a": {}}, {"a": ["a"]}, {"a": [["a"]]}, {"$ref": "#"}, {"type": "string"},
     {"type": [["a"]]}]
)  # fmt: skip
KEYS = st.sampled_from(sorted({*ASSERTED, "$anchor", "$defs", "title"}))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(KEYS, ODD, max_size=3), st.sampled_from(["string", "number", "array", "object", None]))
def test_odd_values_are_taken_or_refused(odd: dict[str, Any], kind: str | None) -> None:
    with suppress(ConstraintError):
        of_schema(odd | ({} if kind is None else {"type": kind}))
