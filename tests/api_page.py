"""Writes the tables of docs/api.md from the routes and their bodies: `python -m tests.api_page`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corepipe.serving.api.bodies.client_settings import SETTINGS
from corepipe.serving.api.bodies.protocol import NESTED
from corepipe.serving.api.bodies.reading import Body, Chosen, Nested
from corepipe.serving.api.bodies.values import Neutral
from corepipe.serving.api.routes.route import Audience, Route
from corepipe.serving.api.table import ROUTES

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


def page(text: str) -> str:
    """Returns the page with the routes, parameters and settings that there are now."""
    hidden = [one for one in ROUTES if one.audience in (Audience.WATCHERS, Audience.OPERATORS)]
    keyless = [one for one in ROUTES if one.keyless]
    parts = {
        r"(?<=\| route \| what \|\n\|---\|---\|\n)(?:\|.*\n)*": "".join(_table()),
        r"(?<=With `--admin-port` the routes ).*(?= are only on that\n)": _listed(hidden),
        r"(?<=route needs one, except ).*(?=\. Without keys)": _listed(keyless),
        r"(?s)## Parameters: .*(?=## Settings that clients send\n)": "".join(_sections()),
        r"(?<=\| sent by \|\n\|---\|---\|---\|---\|---\|\n)(?:\|.*\n)*": "".join(_settings()),
    }
    for pattern, written in parts.items():
        text, count = re.subn(pattern, lambda _, written=written: written, text)
        assert count == 1, pattern
    return text


def _table() -> Iterator[str]:
    for one in ROUTES:
        what = f"{one.summary}: {one.details}" if one.details else one.summary
        yield f"| `{one.method} {one.path}` | {what} |\n"


def _listed(routes: Sequence[Route]) -> str:
    names = [f"`{one.path}`" for one in routes]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _sections() -> Iterator[str]:
    alike: dict[type[Body], list[Route]] = {}
    for one in ROUTES:
        if one.request is not None:
            alike.setdefault(one.request, []).append(one)
    for request, routes in alike.items():
        paths = ", ".join(one.path for one in routes)
        yield from _section(f"{routes[0].method} {paths}", request, request.neutral)
    yield from _nested_sections(NESTED)


def _settings() -> Iterator[str]:
    for one in SETTINGS:
        names = ", ".join(f"`{name}`" for name in one.fields)
        places = ", ".join(place.in_words for place in one.places)
        effect = "" if one.by_template else "honoured: " if one.read_as else "no effect: "
        yield f"| {names} | {_taken(one.takes)} | {places} | {effect}{one.why} | {one.clients} |\n"


def _nested_sections(nested: Mapping[str, Nested | Chosen], prefix: str = "") -> Iterator[str]:
    for name, inner in nested.items():
        assert isinstance(inner, Nested)
        yield from _section(prefix + name, inner.request, inner.neutral)
        yield from _nested_sections(inner.nested, f"{prefix}{name}.")


def _section(title: str, request: type[msgspec.Struct], neutral: Mapping[str, Neutral]) -> Iterator[str]:
    yield f"## Parameters: {title}\n\n"
    yield "| honoured | values | default | |\n"
    yield "|---|---|---|---|\n"
    schema = msgspec.json.schema(request)["$defs"][request.__name__]
    for name, field in schema["properties"].items():
        default = "required" if name in schema["required"] else f"`{_json(field.get('default'))}`"
        yield f"| `{name}` | {_values(field)} | {default} | {field.get('description', '')} |\n"
    if neutral:
        yield "\n| asks for nothing | accepted besides null |\n"
        yield "|---|---|\n"
        for name, accepted in neutral.items():
            yield f"| `{name}` | {_accepted(accepted)} |\n"
    yield "\n"


def _taken(neutral: Neutral) -> str:
    """Returns the accepted values in words; the fields of an object are not listed."""
    if neutral.type is None:
        return _accepted(neutral)
    schema = msgspec.json.schema(neutral.type)
    return "an object" if schema.get("type") == "object" else _values(schema)


def _accepted(neutral: Neutral) -> str:
    if neutral.type is not None:
        return _values(msgspec.json.schema(neutral.type))
    return ", ".join(f"`{_json(value)}`" for value in neutral.values) or "nothing"


def _values(field: Mapping[str, Any]) -> str:
    """Returns a JSON schema in a few words."""
    if "anyOf" in field:
        return " or ".join(_values(one) for one in field["anyOf"] if one.get("type") != "null")
    if "$ref" in field:
        return "object"
    if "enum" in field:
        return " or ".join(f"`{_json(one)}`" for one in field["enum"] if one is not None)
    kind = "list" if field["type"] == "array" else str(field["type"])
    if kind == "list" and field.get("items"):
        kind = f"list of ({_values(field['items'])})"
    if isinstance(field.get("additionalProperties"), dict):
        kind = f"object of ({_values(field['additionalProperties'])})"
    return kind + _bounds(field)


def _bounds(field: Mapping[str, Any]) -> str:
    words = {
        "minimum": "≥ {}",
        "exclusiveMinimum": "> {}",
        "maximum": "≤ {}",
        "maxLength": "up to {} characters",
        "maxItems": "up to {}",
        "maxProperties": "up to {}",
    }
    said = [text.format(field[key]) for key, text in words.items() if key in field]
    return " " + ", ".join(said) if said else ""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
