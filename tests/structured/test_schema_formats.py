"""Formats of schemas: those that answers must fit, and the patterns that they become."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from corepipe.structured.schema_formats import ALIASES, INTEGERS, OWN, PATTERNS
from tests.constrained.walk import takes, walk
from tests.serving.http_support import tokenizer
from tests.structured.test_grammars import of_schema

EXACT = 2**53 - 1


def taken(schema: dict[str, Any], *values: object) -> list[object]:
    grammar = of_schema(schema)
    return [value for value in values if takes(grammar, json.dumps(value, ensure_ascii=False))]


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        ("int8", -128, 127),
        ("uint8", 0, 255),
        ("int16", -32768, 32767),
        ("uint16", 0, 65535),
        ("int32", -(2**31), 2**31 - 1),
        ("uint32", 0, 2**32 - 1),
        ("int64", -EXACT, EXACT),
        ("uint64", 0, EXACT),
        ("int", -EXACT, EXACT),
        ("uint", 0, EXACT),
    ],
)
def test_integer_formats_are_bounds(kind: str, least: int, most: int) -> None:
    values = (least - 1, least, 0, most, most + 1, 0.5)
    for one in ({"type": "integer"}, {"type": "number"}, {"type": ["integer", "null"]}, {}):
        assert taken({**one, "format": kind}, *values) == [least, 0, most], one


@pytest.mark.parametrize(
    ("beside", "fits"),
    [
        ({"minimum": 5, "maximum": 300}, [5, 255]),
        ({"minimum": 5, "maximum": 20}, [5]),
        ({"exclusiveMinimum": -1, "exclusiveMaximum": 255}, [0, 5]),
        ({"allOf": [{"minimum": 5}]}, [5, 255]),
        ({"enum": [5, 300]}, [5, 300]),
    ],
)
def test_the_narrower_bound_counts(beside: dict[str, Any], fits: list[int]) -> None:
    assert taken({"type": "integer", "format": "uint8", **beside}, -1, 0, 5, 255, 256, 300) == fits


def test_bounds_hold_among_schemas_that_hold_together() -> None:
    schema = {"allOf": [{"type": "integer", "format": "uint8"}, {"minimum": 200}]}
    assert taken(schema, 199, 200, 255, 256) == [200, 255]
    wide = {"type": "integer", "format": "uint64", "minimum": 2**60}
    assert taken(wide, 2**60, 2**62, 2**64) == [2**60, 2**62]


def test_an_integer_as_text_has_its_digits() -> None:
    """Protobuf's JSON has such integers of 64 bits."""
    values = ("0", "-5", "999999999999999999", "05", "a", "", "1.0")
    assert taken({"type": "string", "format": "int64"}, *values) == ["0", "-5", "999999999999999999"]
    assert taken({"type": "string", "format": "uint64"}, *values) == ["0", "999999999999999999"]


UUID = "6fa459ea-ee8a-{}ca4-894e-db77e160355e"
TEXTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "date": (("2024-02-29",), ("2023-02-29",)),
    "time": (("23:59:59Z", "00:00:00.5+01:00"), ("24:00:00Z", "10:00:00")),
    "date-time": (("2024-02-29T10:00:00Z",), ("2024-02-29 10:00:00Z",)),
    "time-local": (("10:00:00",), ("10:00:00Z",)),
    "date-time-local": (("2024-02-29T10:00:00",), ("2024-02-29T10:00:00Z",)),
    "duration": (("P1DT2H",), ("P",)),
    "uri": (("http://a.b/c",), ("c",)),
    "iri": (("http://a.b/c",), ("c",)),
    "url": (("http://a.b/c",), ("c",)),
    "uri-reference": (
        ("", "a/b", "/a", "../a?b=c#d", "http://a.b:80/c//d", "#x", "a%20b", "?"),
        ("a b", "//", "a:b:", "%2", "[", "a\\"),
    ),
    "iri-reference": (("/a",), ("a b",)),
    "uri-template": (("/a/{id}{?x,y*}", "{+p:3}"), ("{", "}", "{a", "{}", "a b")),
    "json-pointer": (("", "/a~0/~1/", "/é"), ("a", "/~2", "/~")),
    "relative-json-pointer": (("0", "1/a", "2#"), ("", "01", "/a", "#")),
    "email": (("a@b.c",), ("a",)),
    "idn-email": (("a@b.c",), ("a",)),
    "name-email": (("a@b.c",), ("a",)),
    "hostname": (("a.b",), ("a_b",)),
    "idn-hostname": (("a.b",), ("a b",)),
    "ipv4": (("1.2.3.4",), ("1.2.3",)),
    "ipv4network": (("1.2.3.4",), ("1.2.3",)),
    "ipv4interface": (("1.2.3.4",), ("1.2.3",)),
    "ipv6": (("::1",), (":1",)),
    "ipv6network": (("::1",), (":1",)),
    "ipv6interface": (("::1",), (":1",)),
    "ipvanyaddress": (("1.2.3.4",), ("a",)),
    "ipvanynetwork": (("1.2.3.4",), ("a",)),
    "ipvanyinterface": (("1.2.3.4",), ("a",)),
    "uuid": ((UUID.format(4),), (UUID.format("")[:-1],)),
    "guid": ((UUID.format(4),), ("x",)),
    **{f"uuid{version}": ((UUID.format(version),), (UUID.format(9),)) for version in range(1, 9)},
    "decimal": (("-12.50", "0"), ("1e5", ".5", "")),
}  # fmt: skip


def test_each_format_that_answers_are_held_to_is_tried() -> None:
    assert TEXTS.keys() == {*PATTERNS, *ALIASES, *OWN}


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_a_format(kind: str) -> None:
    good, bad = TEXTS[kind]
    for schema in ({"type": "string", "format": kind}, {"type": ["string", "null"], "format": kind}):
        assert taken(schema, *good, *bad, 5) == list(good)
    assert taken({"format": kind}, *good, *bad, 5) == [*good, 5]
    longest = max(good, key=len)
    beside = {"type": "string", "format": kind, "pattern": f"^{re.escape(longest[:1])}"}
    assert taken(beside, longest, *bad, "~") == [longest]


ANNOTATIONS = (
    "base64", "base64url", "binary", "byte", "char", "color", "cuid2", "directory-path", "double", "emoji",
    "file-path", "float", "http-date", "jwt", "markdown", "password", "path", "phone", "regex", "text",
    "ulid", "unheard-of", "",
)  # fmt: skip


@pytest.mark.parametrize("kind", ANNOTATIONS)
def test_other_formats_are_annotations(kind: str) -> None:
    assert taken({"type": "string", "format": kind}, "any [text", 5) == ["any [text"]
    assert taken({"type": "string", "format": kind, "pattern": "^a"}, "ab", "b") == ["ab"]
    assert taken({"type": "number", "format": kind}, 0.5) == [0.5]
    assert taken({"type": "object", "format": kind}, {"a": 1}) == [{"a": 1}]


@pytest.mark.parametrize("kind", [*TEXTS, *INTEGERS])
def test_a_format_is_nothing_to_other_types(kind: str) -> None:
    assert taken({"type": "boolean", "format": kind}, *(True, "a")) == [True]


@pytest.mark.parametrize("kind", PATTERNS)
def test_what_is_drawn_ends(kind: str) -> None:
    """Any draw ends within a number of tokens; texts of any length have a bound here."""
    grammar = of_schema({"type": "string", "format": kind, "maxLength": 60}, disable_any_whitespace=True)
    assert any(walk(grammar, tokenizer(), seed, 120)[1] for seed in range(4))
