"""JSON schemas of strangers: the schemas within one, what they name, and where references lead."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_DEPTH = 64
"""Of JSON in a schema; llguidance's reader ends at 128."""

Path = tuple[str, ...]
Schema = dict[str, Any]

MAPS = ("properties", "patternProperties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLES = ("additionalProperties", "items", "additionalItems")


class SchemaError(Exception):
    """What of a schema is wrong, and where.  unsupported: it is one, but it cannot be honoured."""

    def __init__(self, path: Path, message: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self.path, self.message, self.unsupported = path, message, unsupported


class LocatedSchema(NamedTuple):
    """A schema within a document."""

    path: Path
    schema: Schema


def literals(places: Iterable[LocatedSchema]) -> Iterator[tuple[Path, str]]:
    """What answers may have to have as it stands, as JSON, and where: constants and names of properties."""
    for path, schema in places:
        if "const" in schema:
            yield (*path, "const"), _written(schema["const"])
        if isinstance(named := schema.get("enum"), list):
            for number, one in enumerate(named):
                yield (*path, "enum", str(number)), _written(one)
        for name in schema.get("properties") or ():
            yield (*path, "properties", name), name
        for name in texts(schema.get("required")):
            yield (*path, "required"), name


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def deeper_than(most: int, value: object) -> bool:
    """Whether a JSON value has more objects and lists inside each other."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        nested = [one for one in level if isinstance(one, dict | list)]
        if not nested:
            return False
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def reachable(document: Schema) -> Iterator[LocatedSchema]:
    """All schemas that an answer may meet, each once; what no $ref leads to is none of them.

    Raises SchemaError for a $ref that leads nowhere or out of the document, and for what is no schema.
    """
    seen: set[int] = set()
    waiting = [LocatedSchema((), document)]
    while waiting:
        place = waiting.pop()
        if id(place.schema) not in seen:
            seen.add(id(place.schema))
            yield place
            waiting += reversed([*referred(document, place), *_subschemas(place)])


def _subschemas(place: LocatedSchema) -> Iterator[LocatedSchema]:
    path, schema = place
    for key in MAPS:
        for name, inner in _of(schema, key, dict, path).items():
            yield from _place((*path, key, name), inner)
    for key in LISTS:
        for number, inner in enumerate(_of(schema, key, list, path)):
            yield from _place((*path, key, str(number)), inner)
    for key in SINGLES:
        inner = schema.get(key)
        if key == "items" and isinstance(inner, list):
            for number, one in enumerate(inner):
                yield from _place((*path, key, str(number)), one)
        elif inner is not None:
            yield from _place((*path, key), inner)


def _of(schema: Schema, key: str, kind: type[Any], path: Path) -> Any:  # noqa: ANN401 -- of that kind
    value = schema.get(key)
    if value is not None and not isinstance(value, kind):
        raise SchemaError((*path, key), "an object is wanted" if kind is dict else "a list is wanted")
    return value or kind()


def _place(path: Path, value: object) -> Iterator[LocatedSchema]:
    if isinstance(value, dict):
        yield LocatedSchema(path, value)
    elif not isinstance(value, bool):
        raise SchemaError(path, "a schema must be an object, true or false")


def referred(document: Schema, place: LocatedSchema) -> Iterator[LocatedSchema]:
    """Where a $ref leads.  Raises SchemaError for one that leads nowhere, or out of the document."""
    reference = place.schema.get("$ref")
    if reference is None:
        return
    path = (*place.path, "$ref")
    if not isinstance(reference, str):
        raise SchemaError(path, "a $ref must be a text")
    if not reference.startswith("#"):
        raise SchemaError(path, "a $ref to another document is not permitted", unsupported=True)
    target, way = resolved(document, reference)
    if target is None:
        raise SchemaError(path, "it leads to nothing in this schema")
    yield from _place(way, target)


def resolved(document: Mapping[str, Any], reference: str) -> tuple[object, Path]:
    """What a $ref within a document leads to, or None; and the way: a JSON pointer, or an anchor's name."""
    if reference != "#" and not reference.startswith("#/"):
        return _anchored(document, unquote(reference.removeprefix("#")))
    steps = [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]
    found: object = document
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.isascii() and step.isdigit() and len(step) < 10:
            found = found[int(step)] if int(step) < len(found) else None
        else:
            return None, ()
    return found, tuple(steps)


def _anchored(document: Mapping[str, Any], name: str) -> tuple[object, Path]:
    waiting: list[tuple[Path, object]] = [((), document)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and value.get("$anchor") == name:
            return value, path
        inner = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        waiting += [((*path, str(key)), one) for key, one in inner]
    return None, ()


def texts(value: object) -> list[str]:
    """Of a list; nothing of what is none."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def types(schema: Schema) -> list[str]:
    """Those that it names; none where it names none."""
    kinds = schema.get("type")
    return [kinds] if isinstance(kinds, str) else texts(kinds)
