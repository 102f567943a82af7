"""Reads bodies strictly, in one walk over their fields, those without effect, and clients' settings.

A field of a body is in one of four lists.  The fields of its type are honoured.  Those of the type's table
`neutral` are accepted with null or with the values that ask for nothing.  The settings of `client_settings`
are accepted without effect, or under their names here.  Every other field is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec

from corepipe.serving.api.bodies.client_settings import SETTINGS_OF, ClientSetting
from corepipe.serving.api.bodies.values import Neutral, convert
from corepipe.serving.api.http.errors import ApiError, echo, invalid

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some clients put before JSON."""

# Limits of a body's contents.  Making Python objects of more would delay all other requests.
SMALL_BODY = 64 * 1024
"""Bytes up to which the values of a body are not counted: so few bytes cannot hold too many."""
# A request for embeddings may have 300,000 token ids.
MOST: Mapping[str, int] = {"strings": 32_768, "arrays and objects": 16_384, "values": 327_680}

MOST_UNKNOWN = 64
"""The most fields that are accepted without effect where an object may have unknown ones."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Nested(NamedTuple):
    """An object in a body, or the objects of a list there: their type, and the objects in them.

    converted: only its settings are looked for; the conversion to its type refuses what is unknown.
    lenient: unknown fields are accepted without effect, as clients send back what other servers have made.
    """

    request: type[msgspec.Struct]
    neutral: Mapping[str, Neutral] = {}
    nested: Mapping[str, Nested | Chosen] = {}
    converted: bool = False
    lenient: bool = False


class Chosen(NamedTuple):
    """Objects of several kinds in a list; the text in the field `by` chooses the kind.

    refusal: makes the error for another value there, from the object's path and the value.
    """

    by: str
    kinds: Mapping[str, Nested]
    refusal: Callable[[str, object], ApiError]

    def of(self, fields: Mapping[str, Any], path: str) -> Nested:
        """Returns the kind of an object.  Raises ApiError where there is none."""
        value = fields.get(self.by)
        kind = self.kinds.get(value) if isinstance(value, str) else None
        if kind is None:
            raise self.refusal(path, value)
        return kind


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a body; beside its fields, those without effect, and the objects in it by field."""

    neutral: ClassVar[Mapping[str, Neutral]] = {}
    nested: ClassVar[Mapping[str, Nested | Chosen]] = {}


R = TypeVar("R", bound=Body)


def parse(body: bytes, request: type[R]) -> R:
    """Reads a body without clients' settings.  Raises ApiError (400) that names the field at fault."""
    return read(decode(body), request, strict=True)[0]


def read(fields: Mapping[str, Any], request: type[R], *, strict: bool) -> tuple[R, list[str]]:
    """Reads a decoded body; returns it and the paths of settings that were accepted without effect.

    strict: clients' settings are refused.  Raises ApiError as `parse`.
    """
    walk = _Walk(strict=strict)
    kept = walk.screened(fields, Nested(request, request.neutral, request.nested), "")
    try:
        converted: R = convert(kept, request)
    except msgspec.ValidationError as error:
        raise explained(error) from None
    return converted, list(walk.ignored)


def explained(error: msgspec.ValidationError, where: str = "") -> ApiError:
    """Returns the error 400 for a value at the path `where` that does not fit its type."""
    text, _, path = str(error).partition(" - at `$")
    param = (where + path.rstrip("`")).lstrip(".")
    if text.startswith("Object missing required field"):
        missing = ".".join(filter(None, (param, text.split("`")[1])))
        return invalid(f"Missing required parameter: '{missing}'.", missing, "missing_required_parameter")
    code = "invalid_type" if ", got `" in text else "invalid_value"
    return invalid(f"Invalid '{param}': {text[0].lower()}{text[1:]}.", param, code)


def decode(body: bytes) -> dict[str, Any]:
    """Decodes a body: one JSON object without NaN, Infinity, lone surrogates or numbers out of range.

    A byte order mark may precede it.  Raises ApiError (400).
    """
    body = body.removeprefix(BYTE_ORDER_MARK)
    if len(body) > SMALL_BODY:
        check_complexity(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if deep else _no_number(body, str(error))
        raise invalid(f"The body is not valid JSON: {reason}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_type")
    return value


def _no_number(body: bytes, message: str) -> str:
    """Returns a message for NaN or Infinity at the byte in msgspec's `message`; else that message."""
    found = re.search(r"\(byte (\d+)\)$", message)
    at = int(found[1]) if found else len(body)
    words = [word for word in ("NaN", "Infinity") if body.startswith(word.encode(), at)]
    return f"{words[0]} is no JSON number (byte {at})" if words else message


def check_complexity(body: bytes, most: Mapping[str, int] = MOST) -> None:
    """Raises ApiError (400) for JSON with too many values, counted in the bytes: some ms a MiB."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    _check_count("strings", bare.count(b'"') // 2, most)
    outside = b"".join(bare.split(b'"')[::2])
    _check_count("arrays and objects", outside.count(b"[") + outside.count(b"{"), most)
    _check_count("values", outside.count(b",") + 1, most)


def _check_count(what: str, count: int, most: Mapping[str, int]) -> None:
    if count > most[what]:
        raise invalid(f"The body holds more than {most[what]} {what}.", code="request_too_complex")


class _Walk:
    """One walk over a decoded body; `ignored`: the paths of settings without effect, in their order."""

    def __init__(self, *, strict: bool) -> None:
        self.ignored: dict[str, None] = {}
        self._strict = strict

    def screened(self, fields: Mapping[str, Any], kind: Nested, path: str) -> dict[str, Any]:
        """Returns the honoured fields of an object, without nulls.  Raises ApiError for one that is refused.

        path: that of its fields: empty, or with a point at its end.
        """
        honoured, settings = kind.request.__struct_fields__, SETTINGS_OF.get(kind.request.__name__, {})
        kept: dict[str, Any] = {}
        for name, value in fields.items():
            if name in settings and self._settled(settings[name], name, fields, kept, path):
                continue
            if name in honoured or kind.converted:
                if value is not None or kind.converted:
                    kept[name] = value
            elif kind.lenient and name not in kind.neutral and self._may_name(name):
                self.ignored[_general(path + name)] = None
            elif name not in kind.neutral or not (value is None or kind.neutral[name].accepts(value)):
                raise _unsupported(path + name, value, name in kind.neutral)
        for name, inner in kind.nested.items():
            if name in kept:
                kept[name] = self._within(kept[name], inner, path + name)
        return kept

    def _may_name(self, name: str) -> bool:
        """Returns whether an unknown field may be accepted, and be named in a header."""
        return not self._strict and len(self.ignored) < MOST_UNKNOWN and bool(_NAME.fullmatch(name))

    def _within(self, value: object, kind: Nested | Chosen, path: str) -> object:
        if isinstance(value, list):
            return [self._object(one, kind, f"{path}[{number}]") for number, one in enumerate(value)]
        return value if isinstance(kind, Chosen) else self._object(value, kind, path)

    def _object(self, value: object, kind: Nested | Chosen, path: str) -> object:
        if not isinstance(value, dict):
            return value
        return self.screened(value, kind.of(value, path) if isinstance(kind, Chosen) else kind, f"{path}.")

    def _settled(
        self, row: ClientSetting, name: str, fields: Mapping[str, Any], kept: dict[str, Any], path: str
    ) -> bool:
        """Takes a client's setting, and returns whether that is done: it is no field of the type then.

        Raises ApiError for two values of one setting, and on a strict server for every setting.
        """
        value, general = fields[name], _general(path + name)
        if value is not None and not row.takes.accepts(value):
            return False
        if self._strict:
            if value is not None:
                raise _refusal(row, name, general)
            return False
        if row.read_as and value is not None:
            if fields.get(row.read_as, value) not in (None, value):
                message = f"{name} is another name of {row.read_as}, and has another value: send one of them."
                raise invalid(message, name)
            kept[row.read_as] = value
        elif value is not None:
            self.ignored[general] = None
        return True


def _general(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def _unsupported(name: str, value: object, known: bool) -> ApiError:
    if known:
        message = f"Unsupported value for parameter {echo(name)}: {echo(value)}. Leave it out."
        return invalid(message, name, "unsupported_parameter")
    message = f"Unsupported parameter: {echo(name)}. Remove it; docs/api.md lists what is honoured."
    return invalid(message, name, "unsupported_parameter")


def _refusal(row: ClientSetting, name: str, path: str) -> ApiError:
    """Returns the error of a strict server."""
    hint = f"Use {row.read_as}" if row.read_as not in ("", name) else "Leave it out"
    message = f"Unsupported value for parameter {echo(path)}. {hint}: this server is strict (--strict)."
    return invalid(message, path, "unsupported_parameter")
