"""Narrowing of a checked JSON schema for llguidance, where it allows more than its authors mean.

Every value that fits the narrowed schema also fits the original one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeGuard

import msgspec

from corepipe.structured.object_keys import forbid_keys_listed_by_none, forbid_other_keys
from corepipe.structured.schema_formats import bound_integers, limit, spell
from corepipe.structured.schema_keywords import simplify
from corepipe.structured.schemas import (
    LocatedSchema,
    Schema,
    SchemaError,
    reachable,
    referred,
    texts,
    types,
)

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
