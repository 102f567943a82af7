"""Cases of constrained answers, and the checks of finished ones by other libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel

from tests.constrained.models import BOUNDED, UNBOUNDED

Check = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """A constraint: `asked` are fields of StructuredOutputsParams.  check: raises if a finished text does not
    fit.

    bounded: every answer ends within 512 tokens or so.  own: a case of the pydantic or SDK set.
    """

    name: str
    asked: Mapping[str, Any]
    check: Check
    bounded: bool
    own: bool = False


def cases(made_up: int, number: int) -> list[Case]:
    """Returns all cases of ours, and `made_up` generated ones from the seed `number`."""
    return [*_models(), *_regexes(), *_choices(), *_grammars(), *_tags(), *_made_up(made_up, number)]


def valid(schema: Any) -> Check:
    validator = jsonschema.Draft202012Validator(schema)

    def check(text: str) -> None:
        validator.validate(json.loads(text))

    return check


def _parsed(model: type[BaseModel], schema: Any) -> Check:
    meets = valid(schema)

    def check(text: str) -> None:
        meets(text)
        model.model_validate_json(text)

    return check


def _models() -> Iterator[Case]:
    for model in (*BOUNDED, *UNBOUNDED):
        schema, bounded = model.model_json_schema(), model in BOUNDED
        yield Case(model.__name__, {"json": model}, _parsed(model, schema), bounded, own=True)
        if model.model_config.get("extra") != "allow" and schema.get("type") == "object":
            strict = to_strict_json_schema(model)
            yield Case(
                f"{model.__name__}, strict", {"json": strict}, _parsed(model, strict), bounded, own=True
            )
    yield Case("any object", {"json_object": True}, valid({"type": "object"}), bounded=False)


REGEXES = (
    r"\d{3}-\d{4}",
    r"(yes|no)( please){0,2}",
    r"[A-Z]{2}\d{2}[a-z0-9]{4,8}",
    r"https?://[a-z]{1,10}\.(com|org)/[a-z/]{0,12}",
    r"\w{1,8}@\w{1,8}\.\w{2,3}",
    r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    "[äöü€]{1,4}",
    r".{5,20}",
)


def _regexes() -> Iterator[Case]:
    for pattern in REGEXES:

        def check(text: str, pattern: str = pattern) -> None:
            assert re.fullmatch(pattern, text), (pattern, text)

        yield Case(f"regex {pattern}", {"regex": pattern}, check, bounded=True)


CHOICES = (
    ("positive", "negative", "neutral"),
    ("a", "ab", "abc"),
    ('say "hi"', "back\\slash", "line\nbreak", "tab\t", "\u20ac \U0001f600", "/slash/"),
    tuple(f"item {number}" for number in range(500)),
)


def _choices() -> Iterator[Case]:
    for choices in CHOICES:

        def check(text: str, choices: tuple[str, ...] = choices) -> None:
            assert text in choices, text

        yield Case(f"choice of {len(choices)}", {"choice": list(choices)}, check, bounded=True)


def _grammars() -> Iterator[Case]:
    def check(text: str) -> None:
        assert re.fullmatch(r"SELECT [a-z]{1,5} FROM (users|items)( WHERE id = \d{1,3})?", text), text

    lark = (
        'start: "SELECT " COLUMN " FROM " table where?\ntable: "users" | "items"\n'
        'where: " WHERE id = " /[0-9]{1,3}/\nCOLUMN: /[a-z]{1,5}/\n'
    )
    gbnf = (
        'root ::= "SELECT " column " FROM " ("users" | "items") where?\n'
        'where ::= " WHERE id = " [0-9]{1,3}\ncolumn ::= [a-z]{1,5}\n'
    )
    yield Case("grammar in Lark", {"grammar": lark}, check, bounded=True)
    yield Case("grammar in GBNF", {"grammar": gbnf}, check, bounded=True)


STEP = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["go", "stop"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["kind", "count"],
    "additionalProperties": False,
}
SMALL = {"type": "integer", "minimum": -99, "maximum": 99}
TAGGED = {"<step>": (STEP, "</step>"), "<size of it>": (SMALL, "</size>")}
"""Schemas and ends of tags, by their beginnings."""


def _tag(begin: str) -> dict[str, Any]:
    schema, end = TAGGED[begin]
    return {"begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end}


def _tags() -> Iterator[Case]:
    structures = [{"begin": begin, "schema": one, "end": end} for begin, (one, end) in TAGGED.items()]
    triggered = {"triggers": ["<st", "<size"], "tags": [_tag(begin) for begin in TAGGED]}
    older = {"structures": structures, "triggers": ["<st", "<size"]}
    yield Case("tags in text", {"structural_tag": json.dumps(older)}, tags_fit(0), bounded=False)
    one = {"type": "triggered_tags", **triggered, "at_least_one": True, "stop_after_first": True}
    several = {"type": "triggered_tags", **triggered, "at_least_one": True}
    listed = {
        "type": "tags_with_separator",
        "tags": triggered["tags"],
        "separator": ", ",
        "at_least_one": True,
    }
    thought = {"type": "tag", "begin": "<thought>", "content": {"type": "any_text"}, "end": "</thought>"}
    after = {"type": "sequence", "elements": [thought, one]}
    yield Case("a tag", {"structural_tag": {"format": one}}, tags_fit(1, "^{}$"), bounded=True)
    yield Case(
        "a tag, then text", {"structural_tag": {"format": several}}, tags_fit(1, "^{}.*$"), bounded=False
    )
    yield Case("tags", {"structural_tag": {"format": listed}}, tags_fit(1, "^{}(, {})*$"), bounded=False)
    check = tags_fit(1, "^<thought>.*</thought>{}$")
    yield Case("a thought, then a tag", {"structural_tag": {"format": after}}, check, bounded=False)


def tags_fit(least: int, whole: str = "") -> Check:
    """Checks that begun tags are complete, and that there are `least`.  whole: a pattern; `{}` is a tag."""
    begins = "|".join(map(re.escape, TAGGED))
    tag = "(?:" + "|".join(f"{re.escape(one)}.*?{re.escape(end)}" for one, (_, end) in TAGGED.items()) + ")"

    def check(text: str) -> None:
        outside = text.partition("</thought>")[2] if text.startswith("<thought>") else text
        found = re.findall(rf"({begins})(.*?)(</step>|</size>)", outside, re.DOTALL)
        assert len(found) == len(re.findall(r"<st|<size", outside)) >= least, text
        for begin, inside, end in found:
            schema, wanted = TAGGED[begin]
            assert end == wanted, text
            jsonschema.validate(json.loads(inside), schema)
        assert re.search(whole.replace("{}", tag), text, re.DOTALL), text

    return check


# Generated schemas


def _text() -> st.SearchStrategy[dict[str, Any]]:
    lengths = st.tuples(st.integers(0, 4), st.integers(0, 8)).map(
        lambda two: {"type": "string", "minLength": two[0], "maxLength": sum(two)}
    )
    patterns = st.sampled_from(["^[a-c]{1,4}$", r"^\d{2}$", "^x(y|z)?$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    )
    formats = st.sampled_from(["date", "date-time", "time", "uuid", "ipv4"]).map(
        lambda name: {"type": "string", "format": name}
    )
    return lengths | patterns | formats


def _number() -> st.SearchStrategy[dict[str, Any]]:
    ranges = st.tuples(st.integers(-1000, 1000), st.integers(0, 5000))
    integers = ranges.map(lambda two: {"type": "integer", "minimum": two[0], "maximum": sum(two)})
    steps = st.tuples(st.integers(1, 12), st.integers(1, 40)).map(
        lambda two: {"type": "integer", "multipleOf": two[0], "minimum": 0, "maximum": two[0] * two[1]}
    )
    return integers | steps | st.just({"type": "integer"})


def _constant() -> st.SearchStrategy[dict[str, Any]]:
    values = st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=6)
    enums = st.lists(values, min_size=1, max_size=4).map(lambda found: {"enum": found})
    return enums | values.map(lambda value: {"const": value})


def _object(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text(max_size=6) | st.sampled_from(["a", "b", "c"])
    properties = st.dictionaries(names, inner, max_size=3)
    return properties.flatmap(
        lambda found: st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.just(found),
                "required": st.lists(st.sampled_from(sorted(found)), unique=True) if found else st.just([]),
                "additionalProperties": st.sampled_from([False]),
            }
        )
    )


def _array(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda three: {
            "type": "array",
            "items": three[0],
            "minItems": three[1],
            "maxItems": three[1] + three[2],
        }
    )


def _union(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found})


def bounded_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Generates schemas whose texts and lists have bounds."""
    leaves = _text() | _number() | _constant() | st.just({"type": "boolean"}) | st.just({"type": "null"})
    inner = st.recursive(leaves, lambda one: _object(one) | _array(one) | _union(one), max_leaves=6)
    return _object(inner)


def _made_up(count: int, number: int) -> Iterator[Case]:
    found: list[dict[str, Any]] = []

    @seed(number)
    @settings(
        max_examples=2 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(bounded_schemas())
    def collect(schema: dict[str, Any]) -> None:
        if len(found) < count and schema not in found:
            found.append(schema)

    if count:
        collect()
    for index, schema in enumerate(found):
        yield Case(f"made up {index}", {"json": schema}, valid(schema), bounded=True)
