"""The reader of calls in tags, `<function=f><parameter=a>1</parameter></function>`: they become JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from corepipe.answers.parsing.call_parts import CallParts
from corepipe.answers.parsing.formats import CallFormat, Tags
from corepipe.answers.parsing.text_stream import NotACallError, Steps, TextCursor
from corepipe.answers.parts import overlap
from corepipe.structured.schemas import resolved

_PYTHONS = {"True": "true", "False": "false", "None": "null"}


def tag_calls(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    """Reads one call.  A value is text, unless its parameter's schema has another type."""
    tags = form.tags
    yield from cursor.expect(tags.function)
    name = yield from cursor.name(tags.mark)
    calls.begin(cursor, name)
    before = "{"
    while (key := (yield from _next_parameter(cursor, tags))) is not None:
        calls.arguments(f"{before}{json.dumps(key)}: ")
        before = ", "
        if not (yield from _value(cursor, calls, tags, value_types(calls.schema(name), key))):
            calls.end(cursor)
            return
    if (yield from cursor.accept(tags.function_end)) or not cursor.ended:
        calls.arguments("{}" if before == "{" else "}")
    calls.end(cursor)


def _next_parameter(cursor: TextCursor, tags: Tags) -> Steps[str | None]:
    """Reads the name of the next parameter; None where there is no other."""
    yield from cursor.space()
    before = cursor.at
    try:
        yield from cursor.expect(tags.parameter)
        return (yield from cursor.name(tags.mark))
    except NotACallError:
        cursor.at = before
        return None


def _value(cursor: TextCursor, calls: CallParts, tags: Tags, types: set[str]) -> Steps[bool]:
    """Passes a value on as JSON.  Returns False where it has no end."""
    yield from cursor.accept("\n")
    cursor.cut()
    if types <= {"string"}:
        calls.arguments('"')
        ended = yield from _until(cursor, tags.parameter_end, lambda text: calls.arguments(_inside(text)))
        calls.arguments('"' if ended else "")
        return ended
    found: list[str] = []
    ended = yield from _until(cursor, tags.parameter_end, found.append)
    if ended:
        calls.arguments(as_json("".join(found), types))
    return ended


def _until(cursor: TextCursor, closing: str, told: Callable[[str], None]) -> Steps[bool]:
    """Passes on the text before `closing`, without the line break there; False if that never comes."""
    while True:
        rest = cursor.rest
        at = rest.find(closing)
        if at >= 0:
            told(rest[:at].removesuffix("\n"))
            cursor.at += at + len(closing)
            cursor.cut()
            return True
        shown = len(rest) - max(overlap(rest, "\n" + closing), overlap(rest, closing))
        told(rest[:shown])
        cursor.at += shown
        cursor.cut()
        if not (yield from cursor.longer()):
            told(cursor.rest)
            cursor.at = len(cursor.text)
            cursor.cut()
            return False


def _inside(text: str) -> str:
    """Writes a text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value_types(schema: Mapping[str, Any], key: str) -> set[str]:
    """Returns JSON's names of the types that a parameter may have; none where the schema names none."""
    properties = schema.get("properties")
    waiting: list[Any] = [properties.get(key)] if isinstance(properties, dict) else []
    found: set[str] = set()
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and id(one) not in seen:  # schemas may refer to each other
            seen.add(id(one))
            found.update(_types(one))
            waiting += [choice for group in ("anyOf", "oneOf", "allOf") for choice in _listed(one.get(group))]
            if isinstance(reference := one.get("$ref"), str):
                waiting.append(resolved(schema, reference)[0])
    return found


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yields the types that a schema names itself."""
    declared = schema.get("type")
    if declared is None:
        values = [*_listed(schema.get("enum")), *([schema["const"]] if "const" in schema else ())]
        yield from map(_type_of, values)
    for one in declared if isinstance(declared, list) else [declared]:
        if isinstance(one, str):
            yield one


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def as_json(text: str, types: set[str]) -> str:
    """Returns the text if it is JSON of one of these types, else the text as a JSON string."""
    bare = text.strip()
    bare = _PYTHONS.get(bare, bare)
    try:
        kind = _type_of(json.loads(bare, parse_constant=_refuse))
    except (ValueError, RecursionError):
        kind = "string"
    if kind in types - {"string"} or (kind == "integer" and "number" in types):
        return bare
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float) and value.is_integer():
        return "integer"
    names = {
        int: "integer",
        float: "number",
        str: "string",
        dict: "object",
        list: "array",
        type(None): "null",
    }
    return names[type(value)]
