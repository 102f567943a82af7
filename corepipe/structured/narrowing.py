"""Narrowing of a checked JSON schema for llguidance, where it allows more than its authors mean.

Every value that fits the narrowed schema also fits the original one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeGuard

import msgspec

from corepipe.structured.schema_formats import bound_integers, limit, spell
from corepipe.structured.schema_keywords import simplify
from corepipe.structured.schemas import LocatedSchema, Schema, SchemaError, reachable, referred, texts, types

LARGEST, SMALLEST = 2**62, 1e-60
"""The bounds of llguidance's numbers, by magnitude; upper ones of integers may be larger."""
BESIDE = frozenset(
    {"additionalProperties", "maximum", "minimum", "patternProperties", "properties", "required", "type"}
)
"""Keywords that apply beside those of `_here`."""


def narrow(document: Schema, places: Sequence[LocatedSchema]) -> None:
    """Narrows the document, whose schemas are `places`.  Raises SchemaError where no answer can end."""
    for _, schema in places:
        simplify(document, schema)
        bound_integers(schema)
        _reach(schema)
    for place in places:
        _tell_apart(document, place)
    groups = _groups(document, places)
    joined = {id(one.schema) for group in groups for one in group}
    for place in places:
        if id(place.schema) not in joined:
            _bound(place.schema)
            forbid_other_keys(place)
    for group in groups:
        forbid_keys_listed_by_none(group)
    for _, schema in places:
        spell(schema)
    _check_that_it_ends(document, list(reachable(document)))


# Schemas that apply together: one may require what another leaves open.


def _groups(document: Schema, places: Sequence[LocatedSchema]) -> list[list[LocatedSchema]]:
    """Returns groups of schemas that apply to an answer together; a schema may be in several groups."""
    found = []
    for place in places:
        here = _here(place.schema)
        if "allOf" in here or len(here) > 1 or (here and not place.schema.keys().isdisjoint(BESIDE)):
            found.append(_group(document, place))
    return found


def _here(schema: Schema) -> list[str]:
    """Returns the keywords by which other schemas apply where this one does."""
    return [key for key in ("$ref", "allOf", "anyOf", "oneOf") if key in schema]


def _group(document: Schema, place: LocatedSchema) -> list[LocatedSchema]:
    found: dict[int, LocatedSchema] = {}
    waiting = [place]
    while waiting:
        one = waiting.pop()
        if id(one.schema) not in found:
            found[id(one.schema)] = one
            waiting += _branches(document, one)
    return list(found.values())


def _branches(document: Schema, place: LocatedSchema) -> Iterator[LocatedSchema]:
    yield from referred(document, place)
    for key in ("allOf", "anyOf", "oneOf"):
        for number, one in enumerate(place.schema.get(key, ())):
            if isinstance(one, dict):
                yield LocatedSchema((*place.path, key, str(number)), one)


# Bounds


def _reach(schema: Schema) -> None:
    """Narrows bounds that llguidance cannot count to, such as those of doubles."""
    for lower, upper in (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")):
        if _number(least := schema.get(lower)) and (least < -LARGEST or 0 < least < SMALLEST):
            schema[lower] = -LARGEST if least < 0 else SMALLEST
        if _number(most := schema.get(upper)) and -SMALLEST < most < 0:
            schema[upper] = -SMALLEST
        elif _number(most) and most > LARGEST and "integer" not in types(schema):
            schema[upper] = LARGEST


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bound(schema: Schema) -> None:
    """Gives bounds to integers without any, which could have endless digits."""
    if "integer" in types(schema) and "number" not in types(schema):
        limit(schema)


# oneOf


def _tell_apart(document: Schema, place: LocatedSchema) -> None:
    """Replaces `oneOf` by `anyOf` where no two of its schemas can apply at once.

    A property whose constants differ distinguishes objects, once all of them must have it.
    """
    branches = place.schema.get("oneOf")
    if not branches or "anyOf" in place.schema or not all(isinstance(one, dict) for one in branches):
        return
    found = [_followed(document, LocatedSchema(place.path, one)) for one in branches]
    if any(one is None for one in found):
        return
    schemas = [one for one in found if one is not None]
    objects = [one for one in schemas if types(one) == ["object"]]
    tag = _tag(objects) if len(objects) > 1 else None
    for one, other in combinations(schemas, 2):
        tagged = tag is not None and types(one) == types(other) == ["object"]
        if not tagged and not _kinds_differ(one, other):
            return
    for one in objects if tag is not None else ():
        one["required"] = [*one.get("required", []), *({tag} - {*texts(one.get("required"))})]
    place.schema["anyOf"] = place.schema.pop("oneOf")


def _followed(document: Schema, place: LocatedSchema) -> Schema | None:
    """Returns a schema, or the target of its $ref."""
    seen: set[int] = set()
    while "$ref" in place.schema:
        if id(place.schema) in seen:
            return None
        seen.add(id(place.schema))
        ways = list(referred(document, place))
        if len(place.schema.keys() - {"$ref", "title", "description"}) or not ways:
            return None
        (place,) = ways
    return place.schema


def _tag(schemas: Sequence[Schema]) -> str | None:
    """Returns a property whose constant distinguishes the objects."""
    if not all(isinstance(one.get("properties"), dict) for one in schemas):
        return None
    if not all(isinstance(one.get("required", []), list) for one in schemas):
        return None
    for name in schemas[0]["properties"]:
        values = [_constants(one["properties"].get(name)) for one in schemas]
        if all(values) and not any(one & other for one, other in combinations(values, 2)):
            return str(name)
    return None


def _constants(schema: object) -> set[bytes]:
    """Returns the texts, as JSON, that a schema allows; empty where it allows others."""
    if not isinstance(schema, dict) or not ("const" in schema or "enum" in schema):
        return set()
    named = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        return set()
    return {msgspec.json.encode(one) for one in named}


def _kinds_differ(one: Schema, other: Schema) -> bool:
    """Tells whether two schemas have no type in common; every integer is a number."""
    kinds, others = ({"number" if kind == "integer" else kind for kind in types(two)} for two in (one, other))
    return bool(kinds and others) and not kinds & others


# Recursion


def _check_that_it_ends(document: Schema, places: Sequence[LocatedSchema]) -> None:
    """Raises SchemaError where every answer would have to contain another one."""
    ends: set[int] = set()
    more = True
    while more and id(document) not in ends:
        more = False
        for place in reversed(places):  # inner ones first
            if id(place.schema) not in ends and _ends(document, place, ends):
                ends.add(id(place.schema))
                more = True
    if id(document) not in ends:
        path = next(one.path for one in reversed(places) if id(one.schema) not in ends)
        raise SchemaError(path, "no finite answer can fit")


def _ends(document: Schema, place: LocatedSchema, ends: set[int]) -> bool:
    """Tells whether some value that fits can end, as far as is known so far."""
    schema = place.schema
    if "const" in schema or "enum" in schema:
        return True
    if any(id(one.schema) not in ends for one in referred(document, place)):
        return False
    if not all(_known(one, ends) for one in schema.get("allOf", ())):
        return False
    for key in ("anyOf", "oneOf"):
        if key in schema and not any(_known(one, ends) for one in schema[key]):
            return False
    kinds = types(schema)
    if not kinds or set(kinds) - {"object", "array"}:
        return True
    return ("object" in kinds and _object_ends(schema, ends)) or (
        "array" in kinds and _array_ends(schema, ends)
    )


def _known(schema: object, ends: set[int]) -> bool:
    return schema is True or id(schema) in ends


def _object_ends(schema: Schema, ends: set[int]) -> bool:
    listed = schema.get("properties", {})
    other = schema.get("additionalProperties", True)
    patterns = schema.get("patternProperties")
    return all(patterns or _known(listed.get(name, other), ends) for name in texts(schema.get("required")))


def _array_ends(schema: Schema, ends: set[int]) -> bool:
    least = schema.get("minItems", 0)
    first = schema.get("prefixItems", [])
    wanted = first[:least] if isinstance(least, int) else []
    rest = schema.get("items", True)
    needs_rest = isinstance(least, int) and least > len(first) and not isinstance(rest, list)
    return all(_known(one, ends) for one in wanted) and (not needs_rest or _known(rest, ends))


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
