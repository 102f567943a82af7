"""Formats of JSON schemas that answers must fit; all others are annotations.

In JSON Schema 2020-12 a format is an annotation unless it is asserted.  Asserted here are the formats that it
defines for texts, except `regex`, and those that widely used libraries write for the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType

from corepipe.structured.schemas import Schema, types

EXACT = 2**53 - 1
"""The largest integer that every reader of JSON reads exactly (RFC 8259, 6)."""

_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
_TIME = rf"{_CLOCK}(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_LEAP = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_HOURS = r"(?:\d{1,4}H(?:\d{1,4}M)?(?:\d{1,4}S)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S)"
_DAYS = r"(?:\d{1,4}Y(?:\d{1,4}M)?(?:\d{1,4}D)?|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}D)"
_CHARACTER = r"(?:[\w\-.~!$&'()*+,;=@]|%[0-9A-F]{2})"
_QUERY = rf"(?:{_CHARACTER}|[:/?])*"
_HOST = r"[a-z][a-z0-9+.\-]*://[a-z0-9]+(?:[\-.][a-z0-9]+)*(?::\d{1,4})?"
_PATH = rf"/(?:{_CHARACTER}+(?:/{_CHARACTER}*)*)?"
_REFERENCE = rf"(?:{_HOST}|{_CHARACTER}+)?(?:{_PATH})?(?:\?{_QUERY})?(?:#{_QUERY})?"
_NAMES = r"\w+(?:\.\w+)*(?:\*|:[1-9]\d{0,3})?"
_HEX = "[0-9a-f]"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": f"P(?:{_DAYS}(?:T{_HOURS})?|T{_HOURS}|\\d{{1,4}}W)",
        "time-local": _CLOCK,
        "date-time-local": f"{_DATE}T{_CLOCK}",
        "uri-reference": _REFERENCE,
        "iri-reference": _REFERENCE,
        "uri-template": rf"(?:{_CHARACTER}|[:/?#]|\{{[+#./;?&]?{_NAMES}(?:,{_NAMES})*\}})*",
        "json-pointer": _POINTER,
        "relative-json-pointer": rf"(?:0|[1-9]\d{{0,8}})(?:#|{_POINTER})",
        "decimal": r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?",
        **{
            f"uuid{version}": rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}"
            for version in range(1, 9)
        },
    }
)
r"""Patterns of texts: only days that exist, no second 60, a limited number of digits.  `\w` is ASCII's."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "guid": "uuid",
        "idn-email": "email",
        "idn-hostname": "hostname",
        "ipv4interface": "ipv4",
        "ipv4network": "ipv4",
        "ipv6interface": "ipv6",
        "ipv6network": "ipv6",
        "ipvanyaddress": "ipv4",
        "ipvanyinterface": "ipv4",
        "ipvanynetwork": "ipv4",
        "iri": "uri",
        "name-email": "email",
        "url": "uri",
    }
)
"""Formats of JSON Schema and pydantic, each with one that allows the same texts or some of them."""

OWN = frozenset({"email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
"""Formats that llguidance supports."""

INTEGERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64, 128)},
        **{f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64, 128)},
        "int": (-(2**63), 2**63 - 1),
        "uint": (0, 2**64 - 1),
    }
)
"""The least and the largest number of each format, which OpenAPI's registry and Rust's schemars write."""


def held(kind: object) -> bool:
    """Tells whether answers must fit a format of texts."""
    return isinstance(kind, str) and (kind in PATTERNS or kind in ALIASES or kind in OWN or kind in INTEGERS)


def bound_integers(schema: Schema) -> None:
    """Makes numbers of an integer format whole, and bounds them."""
    kind = schema.get("format")
    if not isinstance(kind, str) or kind not in INTEGERS:
        return
    kinds = types(schema)
    if "number" in kinds:
        schema["type"] = list(dict.fromkeys("integer" if one == "number" else one for one in kinds))
    if not kinds:
        schema.setdefault("multipleOf", 1)
    if not kinds or "integer" in types(schema):
        limit(schema, *INTEGERS[kind])


def limit(schema: Schema, least: float = -inf, most: float = inf) -> None:
    """Bounds an integer to what every reader of JSON reads exactly, unless the schema allows more."""
    lower = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    upper = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    if (
        "enum" in schema
        or "const" in schema
        or not all(isinstance(one, int | float) for one in lower + upper)
    ):
        return  # other bounds are refused by llguidance
    if not upper and all(one < EXACT for one in lower):
        most = min(most, EXACT)
    if not lower and all(one > -EXACT for one in upper):
        least = max(least, -EXACT)
    if most < inf and all(one > most for one in upper):
        schema["maximum"] = most
    if least > -inf and all(one < least for one in lower):
        schema["minimum"] = least


def spell(schema: Schema) -> None:
    """Replaces a format by a pattern, by a format of llguidance, or by nothing."""
    kind = schema.get("format")
    if not isinstance(kind, str):
        return  # llguidance refuses it
    kind, kinds = ALIASES.get(kind, kind), types(schema)
    schema["format"] = kind
    if kind in OWN:
        return
    del schema["format"]
    pattern = _digits(*INTEGERS[kind]) if kind in INTEGERS else PATTERNS.get(kind)
    if pattern is None or (kinds and "string" not in kinds):
        return
    if "pattern" in schema:
        schema["allOf"] = [*schema.get("allOf", ()), {"pattern": f"^(?:{pattern})$"}]
    else:
        schema["pattern"] = f"^(?:{pattern})$"


def _digits(least: int, most: int) -> str:
    """Writes a pattern of the numbers that have fewer digits than the largest one."""
    return rf"0|{'-?' if least else ''}[1-9]\d{{0,{len(str(most)) - 2}}}"
