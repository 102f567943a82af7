"""Untrusted JSON schemas: the schemas within one, their literal values, and the targets of references."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_DEPTH = 64
"""The greatest depth of JSON in a schema; llguidance's reader stops at 128."""

Path = tuple[str, ...]
Schema = dict[str, Any]

MAPS = ("properties", "patternProperties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLES = ("additionalProperties", "items", "additionalItems")


class SchemaError(Exception):
    """Raised for a fault in a schema, with its path.  unsupported: the schema is valid, but not supported."""

    def __init__(self, path: Path, message: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self.path, self.message, self.unsupported = path, message, unsupported


class LocatedSchema(NamedTuple):
    """A schema within a document, and its path there."""

    path: Path
    schema: Schema


def literals(places: Iterable[LocatedSchema]) -> Iterator[tuple[Path, str]]:
    """Yields the texts that an answer may need exactly, with paths: constants as JSON, property names."""
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
    """Tells whether a JSON value has more than `most` objects and lists inside each other."""
    level: list[Any] = [value]
    for _ in range(most + 1):
        nested = [one for one in level if isinstance(one, dict | list)]
        if not nested:
            return False
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    return True


def reachable(document: Schema) -> Iterator[LocatedSchema]:
    """Yields all schemas that may apply to an answer, each once; definitions without a $ref to them do not.

    Raises SchemaError for a $ref that leads nowhere or out of the document, and for what is not a schema.
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
        raise SchemaError((*path, key), "it must be an object" if kind is dict else "it must be a list")
    return value or kind()


def _place(path: Path, value: object) -> Iterator[LocatedSchema]:
    if isinstance(value, dict):
        yield LocatedSchema(path, value)
    elif not isinstance(value, bool):
        raise SchemaError(path, "a schema must be an object, true or false")


def referred(document: Schema, place: LocatedSchema) -> Iterator[LocatedSchema]:
    """Yields the target of a $ref.  Raises SchemaError for one that leads nowhere, or out of the document."""
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
        raise SchemaError(path, "the $ref points to nothing in this schema")
    yield from _place(way, target)


def resolved(document: Mapping[str, Any], reference: str) -> tuple[object, Path]:
    """Returns the target of a $ref within a document, or None, and its path.

    The reference is a JSON pointer, or the name of an anchor.
    """
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
    """Returns the texts in a list; none of a value that is not a list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def types(schema: Schema) -> list[str]:
    """Returns the types that a schema names; an empty list where it names none."""
    kinds = schema.get("type")
    return [kinds] if isinstance(kinds, str) else texts(kinds)
