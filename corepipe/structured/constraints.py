"""Constraints on the form of an answer, as a request or `SamplingParams` gives them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.errors import UserError, shown

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[Kind, ...] = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")

FIELDS: dict[str, Kind] = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""Fields of StructuredOutputsParams that are a constraint; only one may be set."""

OPTIONS = ("whitespace_pattern", "disable_any_whitespace")
"""Fields of StructuredOutputsParams with options for JSON."""

SCHEMA_OR_TEXT = {"anyOf": [{"type": "object"}, {"type": "string"}]}
"""The JSON Schema of a field that takes a schema or a structural tag."""

MAX_BYTES = 256 * 1024
"""The most bytes of a schema, list, regular expression or grammar as text."""
MAX_NAME = 64
JSON_SPACE = re.compile(
    r"(?: |\\[nrst]|\\x20|\\x0[9aAdD]|\[(?: |\\[nrst]|\\x20|\\x0[9aAdD])+\]"
    r"|\(\?:|[()|*+?]|\{\d{0,4}(?:,\d{0,4})?\})+"
)
"""Patterns that match only white space of JSON; `\\s` stands for it."""


class ConstraintError(UserError):
    """Raised for a constraint that cannot be honoured; `param` is its field, `code` is for programs."""

    def __init__(self, message: str, param: str, code: str = "invalid_value") -> None:
        super().__init__(message, param)
        self.code = code


def unsupported(message: str, param: str) -> ConstraintError:
    return ConstraintError(message, param, "unsupported_value")


def too_complex(message: str, param: str) -> ConstraintError:
    return ConstraintError(message, param, "request_too_complex")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint on the form of an answer, under vLLM's names: one of the first six fields is set.

    json: a schema, as an object or as text; in Python also a pydantic class.  structural_tag: see
    `structural_tags`.
    """

    json: Annotated[
        Any, Meta(description="a JSON schema, as an object or as text", extra_json_schema=SCHEMA_OR_TEXT)
    ] = None
    json_object: Annotated[bool | None, Meta(description="`true`: any JSON object")] = None
    regex: Annotated[str | None, Meta(description="matches the whole answer")] = None
    choice: Annotated[list[str] | None, Meta(description="the answer is one of them")] = None
    grammar: Annotated[str | None, Meta(description="in Lark's syntax or GBNF")] = None
    structural_tag: Annotated[
        Any, Meta(description="tags in free text, as an object or as text", extra_json_schema=SCHEMA_OR_TEXT)
    ] = None
    whitespace_pattern: Annotated[
        str | None, Meta(description="white space between JSON's tokens, as a regular expression")
    ] = None
    disable_any_whitespace: Annotated[bool, Meta(description="no white space between JSON's tokens")] = False


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A constraint.  text: JSON text of a schema, a structural tag or a list of choices; a regular expression
    or a grammar.

    field: the field that it comes from, for errors.  name: that of the schema, if it has one.  whitespace: a
    pattern of what may stand between JSON's tokens; empty for none, None for the default.
    """

    kind: Kind
    text: str
    field: str
    name: str = ""
    whitespace: str | None = None


def constraint_of(params: StructuredOutputsParams, spelling: str = "structured_outputs.{}") -> Constraint:
    """Returns the constraint in `params`.  Raises ConstraintError unless there is one, and it is valid.

    spelling: a format of the names of their fields.
    """
    asked = [name for name in FIELDS if not _is_nothing(getattr(params, name))]
    if len(asked) != 1:
        names = ", ".join(map(spelling.format, asked))
        found = f"there are {names}" if asked else "there is none"
        known = [name for name in FIELDS if name != "structural_tag" or "." in spelling]
        choice = ", ".join(map(spelling.format, known))
        options = [name for name in OPTIONS if not _is_nothing(getattr(params, name))]
        named = asked[1:2] or options[:1]
        param = spelling.format(*named) if named else spelling.removesuffix(".{}").format("json")
        raise ConstraintError(f"One of {choice} is wanted; {found}.", param)
    (name,) = asked
    kind, field = FIELDS[name], spelling.format(name)
    if params.whitespace_pattern is not None and params.disable_any_whitespace:
        where = spelling.format("whitespace_pattern")
        raise ConstraintError(f"{where} is for white space, which disable_any_whitespace forbids.", where)
    if kind not in ("json_schema", "json_object", "structural_tag"):
        _check_options_are_for_json(params, kind, spelling)
    constraint = Constraint(
        kind=kind,
        text=_text(kind, getattr(params, name), field),
        field=field,
        whitespace="" if params.disable_any_whitespace else _spacing(params.whitespace_pattern, spelling),
    )
    check_size(constraint)
    return constraint


def check_size(constraint: Constraint) -> None:
    """Raises ConstraintError for a text of more than `MAX_BYTES`, and for one that is not Unicode."""
    try:
        size = len(constraint.text.encode()) + len((constraint.whitespace or "").encode())
    except UnicodeEncodeError:
        raise ConstraintError(f"{constraint.field} must be Unicode text.", constraint.field) from None
    if size > MAX_BYTES:
        raise too_complex(f"{what(constraint)}: it is larger than {MAX_BYTES} bytes.", constraint.field)


def what(constraint: Constraint) -> str:
    """Returns the beginning of errors about a constraint; clients look for the words "Invalid schema"."""
    if constraint.kind != "json_schema":
        return f"Invalid {constraint.field}"
    return f"Invalid schema for {constraint.field}" + (f" '{constraint.name}'" if constraint.name else "")


def _spacing(pattern: str | None, spelling: str) -> str | None:
    """Returns a pattern of white space.  Raises ConstraintError for other characters, which JSON forbids."""
    if pattern is None:
        return None
    if len(pattern) > MAX_NAME or JSON_SPACE.fullmatch(pattern) is None:
        field = spelling.format("whitespace_pattern")
        raise ConstraintError(
            f"{field} must be a short pattern of JSON's white space, such as [ \\n]? or [\\n\\t ]{{0,4}}, "
            f"not {shown(pattern)}.",
            field,
        )
    inside = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(r"\s", r"\x20\n\r\t"), pattern)
    return inside.replace(r"\s", r"[\x20\n\r\t]")


def _is_nothing(value: object) -> bool:
    return value is None or value is False


def _check_options_are_for_json(params: StructuredOutputsParams, kind: Kind, spelling: str) -> None:
    for option in OPTIONS:
        if not _is_nothing(getattr(params, option)):
            field = spelling.format(option)
            raise ConstraintError(f"{field} is for JSON, not for a {kind}.", field)


def _text(kind: Kind, value: object, field: str) -> str:
    if kind == "json_object":
        if value is not True:
            raise ConstraintError(f"{field} must be true.", field)
        return '{"type":"object"}'
    if kind == "json_schema":
        return schema_text(value, field)
    if kind == "structural_tag":
        return json_text(value, field, "a structural tag")
    if kind == "choice":
        return _choices(value, field)
    if not isinstance(value, str) or not value.strip():
        raise ConstraintError(f"{field} must be a text that is not blank.", field)
    if "\0" in value:
        raise ConstraintError(f"{field} must not have the character U+0000.", field)
    return value


def schema_text(value: object, field: str) -> str:
    """Returns a schema as JSON text: an object, its text, or a pydantic class.  Raises ConstraintError."""
    describe = getattr(value, "model_json_schema", None)
    if isinstance(value, type) and describe is not None:
        value = describe()
    return json_text(value, field, "a JSON schema")


def json_text(value: object, field: str, wanted: str) -> str:
    """Returns the JSON text of an object or of its text.  Raises ConstraintError."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise ConstraintError(f"{field} must be {wanted}, not {shown(repr(value))}.", field)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConstraintError(f"{field} is not JSON: {shown(str(error))}.", field) from None


def _choices(value: object, field: str) -> str:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        raise ConstraintError(f"{field} must be a list of texts that is not empty.", field)
    return json.dumps(list(value), ensure_ascii=False)
