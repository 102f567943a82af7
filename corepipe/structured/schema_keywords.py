"""Keywords of JSON schemas that cannot be honoured: they are refused, unless they exclude nothing.

Keywords that no version of JSON Schema defines are annotations, as its specification says.  All others are
honoured or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from corepipe.structured.schema_formats import held
from corepipe.structured.schemas import (
    MAX_DEPTH,
    LocatedSchema,
    Schema,
    SchemaError,
    deeper_than,
    reachable,
    resolved,
    texts,
    types,
)


class KeywordUse(NamedTuple):
    """A keyword's value, and the schema and document that have it.  seen: references on the way there."""

    value: Any
    schema: Schema
    document: Schema
    seen: frozenset[str] = frozenset()

    def takes_all(self, schema: object, kind: str = "") -> bool:
        """Tells whether a schema within the value accepts all values, or all of a type."""
        return _Reader(self.document, kind, self.seen).takes_all(schema)


def _takes_all(asked: KeywordUse) -> bool:
    return asked.takes_all(asked.value)


def _names_nothing_new(asked: KeywordUse) -> bool:
    """Judges a map from properties to properties that they need, or to schemas."""
    needed = asked.value.values() if isinstance(asked.value, dict) else [False]
    required = texts(asked.schema.get("required"))
    return all(
        all(name in required for name in one) if isinstance(one, list) else asked.takes_all(one)
        for one in needed
    )


def _no_branch_excludes(asked: KeywordUse) -> bool:
    branches = [asked.schema.get(key) for key in ("then", "else")]
    return all(branch is None or asked.takes_all(branch) for branch in branches)


def _takes_texts(asked: KeywordUse) -> bool:
    return asked.takes_all(asked.value, "string")


def _takes_no_two(asked: KeywordUse) -> bool:
    most = whole(asked.schema.get("maxItems"))
    return asked.value is False or (isinstance(most, int) and most < 2)


def _contains_none(asked: KeywordUse) -> bool:
    return whole(asked.schema.get("minContains")) == 0 and "maxContains" not in asked.schema


def _counts_nothing(asked: KeywordUse) -> bool:
    return "contains" not in asked.schema or _contains_none(asked)


def _excludes_nobody(asked: KeywordUse) -> bool:
    denied = asked.value
    if not isinstance(denied, dict):
        return denied is False
    kinds, others = _kinds(asked.schema), _kinds(denied)
    return denied.get("not") in (True, {}) or bool(kinds and others and kinds.isdisjoint(others))


def _never(asked: KeywordUse) -> bool:  # noqa: ARG001 -- the others' signature
    return False


def _always(asked: KeywordUse) -> bool:  # noqa: ARG001 -- the others' signature
    return True


class RefusedKeyword(NamedTuple):
    """A keyword: the type of values that it restricts ("": all), and the check that it excludes none."""

    about: str
    nothing: Callable[[KeywordUse], bool]


REFUSED: Mapping[str, RefusedKeyword] = MappingProxyType(
    {
        "$dynamicAnchor": RefusedKeyword("", _always),  # only a name, which a $dynamicRef would refer to
        "$dynamicRef": RefusedKeyword("", _never),
        "$recursiveAnchor": RefusedKeyword("", _always),
        "$recursiveRef": RefusedKeyword("", _never),
        "contains": RefusedKeyword("array", _contains_none),
        "contentSchema": RefusedKeyword("string", _always),  # an annotation, like `contentMediaType`
        "dependencies": RefusedKeyword("object", _names_nothing_new),
        "dependentRequired": RefusedKeyword("object", _names_nothing_new),
        "dependentSchemas": RefusedKeyword("object", _names_nothing_new),
        "disallow": RefusedKeyword("", lambda asked: asked.value == []),
        "divisibleBy": RefusedKeyword("number", _never),
        "else": RefusedKeyword("", lambda asked: "if" not in asked.schema or _takes_all(asked)),
        "extends": RefusedKeyword("", lambda asked: asked.value == [] or _takes_all(asked)),
        "if": RefusedKeyword("", _no_branch_excludes),
        "maxContains": RefusedKeyword("array", _counts_nothing),
        "minContains": RefusedKeyword("array", _counts_nothing),
        "not": RefusedKeyword("", _excludes_nobody),
        "propertyNames": RefusedKeyword("object", _takes_texts),
        "then": RefusedKeyword("", lambda asked: "if" not in asked.schema or _takes_all(asked)),
        "unevaluatedItems": RefusedKeyword(
            "array", lambda asked: isinstance(asked.schema.get("items"), dict | bool) or _takes_all(asked)
        ),
        "unevaluatedProperties": RefusedKeyword(
            "object", lambda asked: asked.schema.get("additionalProperties") is not None or _takes_all(asked)
        ),
        "uniqueItems": RefusedKeyword("array", _takes_no_two),
    }
)
"""Keywords that no grammar here can express; `extends`, `disallow` and `divisibleBy` are of old drafts."""

ASSERTED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"), ""),
        **dict.fromkeys(("additionalItems", "items", "maxItems", "minItems", "prefixItems"), "array"),
        **dict.fromkeys(
            ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"), "number"
        ),
        **dict.fromkeys(("additionalProperties", "maxProperties", "minProperties"), "object"),
        **dict.fromkeys(("patternProperties", "properties", "required"), "object"),
        **dict.fromkeys(("format", "maxLength", "minLength", "pattern"), "string"),
        **{key: one.about for key, one in REFUSED.items()},
    }
)
"""Keywords by which a schema may exclude values, and the type of values that each restricts."""

COUNTS = ("maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties")


def check(document: Schema) -> list[LocatedSchema]:
    """Returns the schemas within a document that may apply to an answer.

    Raises SchemaError for the first keyword that cannot be honoured.
    """
    if deeper_than(MAX_DEPTH, document):
        raise SchemaError((), f"it is nested more than {MAX_DEPTH} deep", unsupported=True)
    if "x-guidance" in document:  # llguidance's own keyword, which could make it ignore others
        raise SchemaError((), "'x-guidance' is not permitted", unsupported=True)
    places = list(reachable(document))
    for place in places:
        _check_keywords(document, place)
        _check_free_keys(place)
    return places


def simplify(document: Schema, schema: Schema) -> None:
    """Drops the keywords of a checked schema that exclude nothing; makes counts such as `2.0` integers."""
    for key in schema.keys() & ASSERTED.keys():
        if key in REFUSED or _unsaid(key, schema[key]):
            del schema[key]
    for key in COUNTS:
        if key in schema:
            schema[key] = whole(schema[key])
    if isinstance(schema.get("additionalProperties"), dict) and takes_all(
        document, schema["additionalProperties"]
    ):
        schema["additionalProperties"] = True


def _unsaid(key: str, value: object) -> bool:
    """Tells whether a value is the null that some programs write for a keyword that is not set."""
    return value is None and key != "const"


def whole(value: object) -> object:
    """Returns a number without a fraction as an integer, anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def takes_all(document: Schema, schema: object, kind: str = "") -> bool:
    """Tells whether a schema accepts all values, or all of a type; False also where that is hard to see."""
    return _Reader(document, kind).takes_all(schema)


class _Reader(NamedTuple):
    """Tells whether schemas accept all values of a type ("": all); `seen` as in `KeywordUse`."""

    document: Schema
    kind: str
    seen: frozenset[str] = frozenset()

    def takes_all(self, schema: object) -> bool:
        if not isinstance(schema, dict):
            return schema is True
        said = [key for key, value in schema.items() if key in ASSERTED and not _unsaid(key, value)]
        return all(self._passes(key, schema) for key in said if self._concerned(key))

    def _concerned(self, key: str) -> bool:
        return not self.kind or ASSERTED[key] in ("", self.kind)

    def _passes(self, key: str, schema: Schema) -> bool:
        value = schema[key]
        if key == "type":
            return self.kind in types(schema)
        if key == "$ref":
            return self._follows(value)
        if key in ("allOf", "anyOf"):
            some = all if key == "allOf" else any
            return isinstance(value, list) and some(map(self.takes_all, value))
        if key in REFUSED:
            return REFUSED[key].nothing(KeywordUse(value, schema, self.document, self.seen))
        return _says_nothing(key, value)

    def _follows(self, reference: object) -> bool:
        within = isinstance(reference, str) and reference.startswith("#")
        if not within or reference in self.seen or len(self.seen) == MAX_DEPTH:
            return False
        target, _ = resolved(self.document, str(reference))
        return self._replace(seen=self.seen | {str(reference)}).takes_all(target)


def _says_nothing(key: str, value: object) -> bool:
    """Tells whether a keyword's value shows by itself that it excludes nothing."""
    if key == "format":
        return not held(value)
    if key == "pattern":
        return value in ("", "^", "$", ".*")
    if key == "required":
        return value == []
    return key in ("minItems", "minLength", "minProperties") and whole(value) == 0


def _check_keywords(document: Schema, place: LocatedSchema) -> None:
    path, schema = place
    for key, value in schema.items():
        refused = REFUSED.get(key)
        if refused is None or _unsaid(key, value) or not _concerns(schema, refused.about):
            continue
        if not refused.nothing(KeywordUse(value, schema, document)):
            raise SchemaError(path, f"'{key}' is not permitted", unsupported=True)


def _concerns(schema: Schema, about: str) -> bool:
    """Tells whether a schema may accept values of a type."""
    kinds = _kinds(schema)
    return not about or not kinds or about in kinds


def _kinds(schema: Schema) -> set[str]:
    """Returns the types that a schema names, with "number" for integers."""
    return {"number" if kind == "integer" else kind for kind in types(schema)}


def _check_free_keys(place: LocatedSchema) -> None:
    """Raises SchemaError for a count of keys that are not listed: two could be equal, and readers see one."""
    path, schema = place
    least = whole(schema.get("minProperties"))
    listed = len(set(texts(schema.get("required"))))
    if isinstance(least, int) and least > listed + 1 and _concerns(schema, "object"):
        reason = f"'minProperties' more than one above the number of 'required' ({listed}) is not permitted"
        raise SchemaError(path, reason, unsupported=True)
