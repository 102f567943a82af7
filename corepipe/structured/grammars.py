"""Conversion of a constraint to a checked grammar for llguidance: the server's half of structured output.

Untrusted input may make this module take any time and memory: a server runs it in a process of its own
(`grammar_sandbox`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from corepipe.errors import UserError, shown
from corepipe.structured import schemas
from corepipe.structured.constraints import Constraint, ConstraintError, Kind, unsupported, what
from corepipe.structured.narrowing import narrow
from corepipe.structured.schema_keywords import check
from corepipe.structured.spelling import ANY_TEXT, Spelling
from corepipe.structured.structural_tags import TagGrammarWriter, format_of

if TYPE_CHECKING:  # see `_library`
    from llguidance import LLMatcher

WHITESPACE = r"[\x20\n\r\t]{1,8}"
"""White space between JSON's tokens where a request gives none: some models write it without end."""

LIMITS: Mapping[str, int] = {
    "initial_lexer_fuel": 50_000,
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
}
"""Values of `LLParserLimits`, lower than its defaults: limits on compiling an untrusted grammar, and on each
of its masks; the engine compiles with the same (`engine.masks`).  The first fuel bounds the memory of a
grammar: at 500,000 a pattern such as `a{1000}{1000}{1000}` takes 80 MB, at 50,000 it takes 7."""

TRIED_BYTES = 24
WAYS = ("l", "h", "lh")
"""The ways to try a grammar: the lowest byte that it allows at each step, the highest, or both in turn."""
ALL_BYTES = (1 << 256) - 1

TOO_COMPLEX = "it is too complex"
UNWRITTEN = "it needs characters that no token of the model has"
REASONS: Mapping[str, str] = {
    "oneOf constraints are not supported": "'oneOf' of schemas that may hold at once is not permitted",
    "no tokenizer": "special tokens are not supported",
    "NoExtension": "nothing fits it",
    "too many expressions": TOO_COMPLEX,
    "too many states": TOO_COMPLEX,
    "fuel": TOO_COMPLEX,
}
"""Reasons for clients, by words in messages of llguidance."""
UNFIT = ("Unsatisfiable schema", "Invalid type", "NoExtension", "Expected ")
"""Words of messages about constraints that are wrong in themselves."""
MAX_REASON = 240
MAX_PATH = 12
MAX_TRIALS = 64
"""The most parts of a schema that are tried to find the one at fault."""

CLASSES = {r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]"}
OPTIONS = re.compile(r"^[ \t]*[?!]*[a-z_][\w-]*[ \t]*\[([^\]\n]*)\][ \t]*:", re.MULTILINE)
"""The options of a rule in Lark's syntax."""
HONOURED_OPTIONS = frozenset({"lazy", "suffix", "capture"})


def grammar_of(constraint: Constraint, spelling: Spelling = ANY_TEXT) -> str:
    """Returns a constraint's grammar as text.  Raises ConstraintError for what is wrong or cannot be
    honoured.

    spelling: that of the model that will answer.
    """
    return _BUILDERS[constraint.kind](constraint, spelling)


def schema_of(grammar: str) -> schemas.Schema:
    """Returns the narrowed schema in a grammar that was made from a schema."""
    found: schemas.Schema = json.loads(grammar)["grammars"][0]["json_schema"]
    return found


def _library() -> ModuleType:
    try:
        import llguidance  # noqa: PLC0415 -- optional; it has no wheels for musl
    except ImportError as error:
        raise UserError(
            "structured output needs the package llguidance, which is not installed", "structured_outputs"
        ) from error
    return llguidance


def _fault(grammar: str, absent: int) -> str:
    """Returns llguidance's objection to a grammar; "" where it accepts it and an answer can begin.

    absent: a bit for each byte that the model cannot write.
    """
    library = _library()
    limits = library.LLParserLimits(**LIMITS)
    _, messages = library.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if messages:
        return str(messages[0])
    matcher = library.LLMatcher(library.LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    tried = (_first_error(matcher.deep_copy(), way, absent) for way in WAYS)
    return next(filter(None, tried), "")


def _first_error(matcher: LLMatcher, way: str, absent: int) -> str:
    """Returns llguidance's objection to the first bytes of an answer, where some of its limits apply."""
    for at in range(TRIED_BYTES):
        wanted = int.from_bytes(matcher.compute_bitmask(), "little")
        if wanted and not wanted & ~absent:
            return UNWRITTEN
        allowed = wanted & ALL_BYTES & ~absent
        if not allowed or matcher.is_error():
            break
        lowest, highest = (allowed & -allowed).bit_length() - 1, allowed.bit_length() - 1
        matcher.consume_token(highest if way[at % len(way)] == "h" else lowest)
        if matcher.is_error() or matcher.is_stopped():
            break
    return str(matcher.get_error()) if matcher.is_error() else ""


def _reason(message: str) -> str:
    """Makes one bounded line of a library's message, without advice that only its own users can follow."""
    for said, reason in REASONS.items():
        if said in message:
            return reason
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = next(
        (line for line in lines if line.startswith("error: ")), lines[0] if lines else "it is refused"
    )
    return shown(said.removeprefix("error: "), MAX_REASON).rstrip(".")


# Schemas


class _Written(NamedTuple):
    """The form of written JSON: llguidance's options, and the bytes that cannot be written (see `_fault`)."""

    options: Mapping[str, object]
    absent: int


def _json(constraint: Constraint, spelling: Spelling) -> str:
    document = _document(constraint)
    with _errors(constraint):
        _narrow(document, spelling)
    written = _Written(_spacing(constraint), _bits(spelling.absent))
    if fault := _schema_fault(document, written):
        path, fault = _narrowed(document, written, fault)
        raise _at(constraint, path, _reason(fault), _code(fault, "unsupported_value"))
    return _schema_grammar(document, written.options)


@contextmanager
def _errors(constraint: Constraint, told: Callable[[schemas.Path], schemas.Path] = tuple) -> Iterator[None]:
    """Turns a SchemaError into a ConstraintError.  told: converts a path to one in the constraint."""
    try:
        yield
    except schemas.SchemaError as error:
        code = "unsupported_value" if error.unsupported else "invalid_value"
        raise _at(constraint, told(error.path), error.message, code) from None


def _narrow(document: schemas.Schema, spelling: Spelling) -> None:
    """Changes a schema to the one that llguidance gets.  Raises SchemaError."""
    places = check(document)
    for path, text in schemas.literals(places):
        _check_spelling(spelling, path, text)
    narrow(document, places)


def _check_spelling(spelling: Spelling, path: schemas.Path, text: str) -> None:
    """Raises SchemaError for a text that an answer may need and the model cannot write."""
    if char := spelling.unwritten(text):
        reason = f"the model has no tokens for U+{ord(char):04X}"
        raise schemas.SchemaError(path, reason, unsupported=True)


def _bits(values: bytes) -> int:
    return sum(1 << value for value in values)


def _document(constraint: Constraint) -> schemas.Schema:
    try:
        document = msgspec.json.decode(constraint.text)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else shown(str(error))
        raise ConstraintError(f"{what(constraint)}: it is not JSON: {reason}.", constraint.field) from None
    if not isinstance(document, dict):
        raise ConstraintError(f"{what(constraint)}: it must be a JSON object.", constraint.field)
    return document


def _spacing(constraint: Constraint) -> dict[str, object]:
    pattern = WHITESPACE if constraint.whitespace is None else constraint.whitespace
    return {"whitespace_pattern": pattern} if pattern else {"whitespace_flexible": False}


def _schema_grammar(document: object, options: Mapping[str, object]) -> str:
    text = json.dumps(document, ensure_ascii=False)
    return str(_library().LLMatcher.grammar_from_json_schema(text, overrides=dict(options)))


def _schema_fault(document: object, written: _Written) -> str:
    try:
        return _fault(_schema_grammar(document, written.options), written.absent)
    except ValueError as error:
        return str(error)


def _narrowed(document: schemas.Schema, written: _Written, fault: str) -> tuple[schemas.Path, str]:
    """Finds the innermost schema that is refused by itself, and the reason."""
    shared: schemas.Schema = {key: document[key] for key in ("$defs", "definitions") if key in document}
    path: schemas.Path = ()
    for trials, place in enumerate(schemas.reachable(document)):
        if trials == MAX_TRIALS:
            break
        inside = place.path[: len(path)] == path or "$defs" in place.path or "definitions" in place.path
        if place.path and inside and (found := _schema_fault({**shared, **place.schema}, written)):
            path, fault = place.path, found
    return path, fault


def _code(fault: str, otherwise: str) -> str:
    """Returns the code of an error: too complex, wrong in itself, or `otherwise`."""
    if _reason(fault) == TOO_COMPLEX:
        return "request_too_complex"
    if fault == UNWRITTEN:
        return "unsupported_value"
    return "invalid_value" if any(words in fault for words in UNFIT) else otherwise


def _at(constraint: Constraint, path: schemas.Path, reason: str, code: str) -> ConstraintError:
    way = tuple(shown(step, 40) for step in path[:MAX_PATH])
    message = f"{what(constraint)}: In context={way!r}, {reason}."
    return ConstraintError(message, constraint.field, code)


# The others


def _regex(constraint: Constraint, spelling: Spelling) -> str:
    grammar = _library().LLMatcher.grammar_from_regex(_plain_classes(constraint.text))
    return _checked(constraint, spelling, grammar)


def _plain_classes(pattern: str) -> str:
    r"""Makes \d and \w ASCII's, except in excluded sets: each library has another version of Unicode."""
    excluded: list[bool] = []

    def replaced(found: re.Match[str]) -> str:
        part = found[0]
        if part.startswith("["):
            excluded.append(part == "[^")
        elif part == "]" and excluded:
            excluded.pop()
        elif part in CLASSES and not any(excluded):
            return CLASSES[part]
        return part

    return re.sub(r"\\.|\[\^?|\]", replaced, pattern, flags=re.DOTALL)


def _choice(constraint: Constraint, spelling: Spelling) -> str:
    choices = msgspec.json.decode(constraint.text, type=list[str])
    with _errors(constraint):
        for number, one in enumerate(choices):
            _check_spelling(spelling, (str(number),), one)
    return _checked(constraint, spelling, _lark("start: " + " | ".join(_literal(one) for one in choices)))


def _literal(text: str) -> str:
    """Quotes a text for Lark's syntax; json leaves some control characters as they are."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) == "Cc" else one for one in quoted)


def _grammar(constraint: Constraint, spelling: Spelling) -> str:
    _library()
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415 -- see `_library`

    try:
        text = any_to_lark(constraint.text)
    except Exception as error:  # its reader raises errors of many types
        reason = _reason(str(error) or type(error).__name__)
        raise ConstraintError(f"{what(constraint)}: {reason}.", constraint.field) from None
    for option in _options(text):
        if option not in HONOURED_OPTIONS:
            message = f"{what(constraint)}: the option {shown(option)} of a rule is not supported."
            raise unsupported(message, constraint.field)
    if "%llguidance" in constraint.text:
        raise unsupported(f"{what(constraint)}: %llguidance is not supported.", constraint.field)
    return _checked(constraint, spelling, _lark(text))


def _structural(constraint: Constraint, spelling: Spelling) -> str:
    document = _document(constraint)
    if schemas.deeper_than(schemas.MAX_DEPTH, document):
        raise _at(constraint, (), f"it is nested more than {schemas.MAX_DEPTH} deep", "unsupported_value")
    with _errors(constraint):
        form, told = format_of(document)
    inner = _Inner(_Written(_spacing(constraint), _bits(spelling.absent)), spelling)
    with _errors(constraint, told):
        plain, marked = (
            TagGrammarWriter(inner.text, inner.check, tokens).lark(form) for tokens in ({}, spelling.added)
        )
    if fault := _fault(_lark(plain), inner.written.absent):
        path, found = inner.fault()
        raise _at(constraint, told(path), _reason(found or fault), _code(fault, "unsupported_value"))
    return _lark(marked)


class _Inner:
    """The schemas within a structural tag, by their paths in it."""

    def __init__(self, written: _Written, spelling: Spelling) -> None:
        self.written = written
        self._spelling = spelling
        self._schemas: dict[schemas.Path, schemas.Schema] = {}

    def text(self, path: schemas.Path, schema: schemas.Schema) -> str:
        """Returns the text of a schema for a rule.  Raises SchemaError."""
        if path not in self._schemas:
            try:
                _narrow(schema, self._spelling)
            except schemas.SchemaError as error:
                raise schemas.SchemaError(
                    (*path, *error.path), error.message, unsupported=error.unsupported
                ) from None
            self._schemas[path] = schema
        return json.dumps({**schema, "x-guidance": self.written.options}, ensure_ascii=False)

    def check(self, path: schemas.Path, text: str) -> None:
        """Raises SchemaError for a text that the model cannot write."""
        _check_spelling(self._spelling, path, text)

    def fault(self) -> tuple[schemas.Path, str]:
        """Finds the schema that is refused by itself, and the reason; ((), "") where all are accepted."""
        for path, schema in self._schemas.items():
            if fault := _schema_fault(schema, self.written):
                inside, fault = _narrowed(schema, self.written, fault)
                return (*path, *inside), fault
        return (), ""


def _options(text: str) -> Iterator[str]:
    for found in OPTIONS.finditer(text):
        yield from (one.partition("=")[0].strip() for one in found[1].split(","))


def _lark(text: str) -> str:
    return str(_library().LLMatcher.grammar_from_lark(text))


def _checked(constraint: Constraint, spelling: Spelling, grammar: str) -> str:
    if fault := _fault(grammar, _bits(spelling.absent)):
        message = f"{what(constraint)}: {_reason(fault)}."
        raise ConstraintError(message, constraint.field, _code(fault, "invalid_value"))
    return grammar


_BUILDERS: Mapping[Kind, Callable[[Constraint, Spelling], str]] = {
    "json_schema": _json,
    "json_object": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "structural_tag": _structural,
}
