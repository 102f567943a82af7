"""The keys of objects beside those that a schema lists, each with one spelling only.

llguidance recognizes a listed key by its plain spelling: a free key could be the same one, written with
escapes (`"\\u0061"` for `"a"`), and a reader would take the last.  A key that a pattern describes has one
spelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from corepipe.structured.schemas import LocatedSchema, Schema, SchemaError, texts

MAX_PATTERN = 1 << 16
"""The most characters of a pattern for all keys but some."""
ANY = "(?s:.*)"


def forbid_other_keys(place: LocatedSchema) -> None:
    """Forbids other keys in an object that lists its own; others that the schema mentions get a pattern."""
    schema, other = place.schema, place.schema.get("additionalProperties", False)
    patterns = schema.get("patternProperties")
    if not _lists(schema):
        return
    listed = dict(schema.get("properties", {}))
    for name in texts(schema.get("required")):
        listed.setdefault(name, True if patterns or other is False else other)
    if "additionalProperties" in schema and other is False:
        return  # required keys that are not listed are impossible then
    if other is not False and not patterns:
        schema["patternProperties"] = {_all_but(listed, place): other}
    elif isinstance(other, dict):
        reason = "'additionalProperties' with a schema beside 'patternProperties' is not permitted"
        raise SchemaError(place.path, reason, unsupported=True)
    schema["properties"] = listed
    schema["additionalProperties"] = False


def forbid_keys_listed_by_none(group: Sequence[LocatedSchema]) -> None:
    """Forbids keys that none of several schemas lists, where these apply to an object together."""
    if not any(_lists(one.schema) for one in group):
        return
    names = dict.fromkeys(name for one in group for name in _names(one.schema))
    for path, schema in group:
        other = schema.get("additionalProperties", True)
        if isinstance(other, dict):
            reason = "'additionalProperties' with a schema beside others that hold at once is not permitted"
            raise SchemaError(path, reason, unsupported=True)
        if other is True and (_lists(schema) or "additionalProperties" in schema):
            schema["properties"] = {**schema.get("properties", {}), **_rest(schema, names)}
            schema["additionalProperties"] = False


def _lists(schema: Schema) -> bool:
    return "properties" in schema or "patternProperties" in schema


def _names(schema: Schema) -> Iterator[str]:
    yield from schema.get("properties", {})
    yield from texts(schema.get("required"))


def _rest(schema: Schema, names: Iterable[str]) -> Schema:
    """Returns the keys that other schemas list, with any value."""
    return {name: True for name in names if name not in schema.get("properties", {})}


def _all_but(names: Iterable[str], place: LocatedSchema) -> str:
    """Writes a pattern of all texts but these: for each prefix of a name, the ways to leave all names."""
    after: dict[str, set[str]] = {"": set()}
    for name in names:
        for at, character in enumerate(name):
            after.setdefault(name[:at], set()).add(character)
        after.setdefault(name, set())
        if sum(map(len, after)) > MAX_PATTERN:
            raise SchemaError(place.path, "'properties' has names that are too long", unsupported=True)
    ends = set(names)
    parts = []
    for start, heads in after.items():
        begun = "".join(map(_quoted, start))
        parts.append(
            f"{begun}[^{''.join(map(_quoted, sorted(heads)))}]{ANY}" if heads else f"{begun}(?s:.){ANY}"
        )
        if start not in ends:
            parts.append(begun)
    return f"^(?:{'|'.join(parts)})$"


def _quoted(character: str) -> str:
    """Quotes a character for a regular expression, in brackets and outside."""
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"
