"""From a constraint to a grammar as llguidance takes it, checked: the front's half of structured output.

What this module does with a stranger's text may take any time and memory: a server has it done in a process
of its own (`grammar_sandbox`).
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from corepipe.errors import UserError, shown
from corepipe.serving import schemas
from corepipe.serving.constraints import Constraint, ConstraintError, Kind, unsupported, what
from corepipe.serving.narrowed import narrow

if TYPE_CHECKING:  # see `_library`
    from llguidance import LLMatcher

WHITESPACE = r"[\x20\n\r\t]{1,8}"
"""Between JSON's tokens, where a request does not say it: some models write white space without end."""

LIMITS: Mapping[str, int] = {
    "initial_lexer_fuel": 50_000,
    "max_grammar_size": 100_000,
    "max_lexer_states": 50_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
}
"""Of `LLParserLimits`, lower than its own: what a stranger's grammar may take to compile, and each of its
masks; the engine compiles by the same (`engine.masks`).  The first fuel bounds the memory of a grammar: at
500,000 a pattern such as `a{1000}{1000}{1000}` takes 80 MB, at 50,000 it takes 7."""

TRIED_BYTES = 24
WAYS = ("l", "h", "lh")
"""By which a grammar is tried: the lowest byte that it allows, the highest, or by turns."""
ALL_BYTES = (1 << 256) - 1

TOO_COMPLEX = "it is too complex"
REASONS: Mapping[str, str] = {
    "oneOf constraints are not supported": "'oneOf' of schemas that may hold at once is not permitted",
    "no tokenizer": "special tokens are not supported",
    "NoExtension": "nothing fits it",
    "too many expressions": TOO_COMPLEX,
    "too many states": TOO_COMPLEX,
    "fuel": TOO_COMPLEX,
}
"""For messages of llguidance's that have these words."""
UNFIT = ("Unsatisfiable schema", "Invalid type", "NoExtension", "Expected ")
"""Words of messages about what is wrong in itself."""
MAX_REASON = 240
MAX_PATH = 12
MAX_TRIALS = 64
"""Of parts of a schema, to find the one at fault."""

CLASSES = {r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]"}
OPTIONS = re.compile(r"^[ \t]*[?!]*[a-z_][\w-]*[ \t]*\[([^\]\n]*)\][ \t]*:", re.MULTILINE)
"""The options of a rule in Lark's syntax."""
HONOURED_OPTIONS = frozenset({"lazy", "suffix", "capture"})


def grammar_of(constraint: Constraint) -> str:
    """The grammar's text.  Raises ConstraintError for what is wrong or cannot be honoured."""
    return _BUILDERS[constraint.kind](constraint)


def schema_of(grammar: str) -> schemas.Schema:
    """The schema of a grammar that was made of one, narrowed."""
    found: schemas.Schema = json.loads(grammar)["grammars"][0]["json_schema"]
    return found


def _library() -> ModuleType:
    try:
        import llguidance  # noqa: PLC0415 -- only who asks for it needs it; there are none of its wheels for musl
    except ImportError as error:
        raise UserError(
            "structured output needs the package llguidance, which is not installed", "structured_outputs"
        ) from error
    return llguidance


def _fault(grammar: str) -> str:
    """What llguidance says against a grammar; nothing where it takes it all, and an answer can begin."""
    library = _library()
    limits = library.LLParserLimits(**LIMITS)
    _, messages = library.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if messages:
        return str(messages[0])
    matcher = library.LLMatcher(library.LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    tried = (_first_error(matcher.deep_copy(), way) for way in WAYS)
    return next(filter(None, tried), "")


def _first_error(matcher: LLMatcher, way: str) -> str:
    """What llguidance says against an answer as it begins: some of its limits are met by the first bytes."""
    for at in range(TRIED_BYTES):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ALL_BYTES
        if not allowed or matcher.is_error():
            break
        lowest, highest = (allowed & -allowed).bit_length() - 1, allowed.bit_length() - 1
        matcher.consume_token(highest if way[at % len(way)] == "h" else lowest)
        if matcher.is_error() or matcher.is_stopped():
            break
    return str(matcher.get_error()) if matcher.is_error() else ""


def _reason(message: str) -> str:
    """A library's message in one bounded line, without what only its own users can do."""
    for said, reason in REASONS.items():
        if said in message:
            return reason
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = next(
        (line for line in lines if line.startswith("error: ")), lines[0] if lines else "it is refused"
    )
    return shown(said.removeprefix("error: "), MAX_REASON).rstrip(".")


# Schemas


def _json(constraint: Constraint) -> str:
    document = _document(constraint)
    try:
        narrow(document, schemas.check(document))
    except schemas.SchemaError as error:
        code = "unsupported_value" if error.unsupported else "invalid_value"
        raise _at(constraint, error.path, error.message, code) from None
    options = _spacing(constraint)
    if fault := _schema_fault(document, options):
        path, fault = _narrowed(document, options, fault)
        raise _at(constraint, path, _reason(fault), _code(fault, "unsupported_value"))
    return _schema_grammar(document, options)


def _document(constraint: Constraint) -> schemas.Schema:
    try:
        document = msgspec.json.decode(constraint.text)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else shown(str(error))
        raise ConstraintError(f"{what(constraint)}: it is not JSON: {reason}.", constraint.field) from None
    if not isinstance(document, dict):
        raise ConstraintError(f"{what(constraint)}: a schema must be a JSON object.", constraint.field)
    return document


def _spacing(constraint: Constraint) -> dict[str, object]:
    pattern = WHITESPACE if constraint.whitespace is None else constraint.whitespace
    return {"whitespace_pattern": pattern} if pattern else {"whitespace_flexible": False}


def _schema_grammar(document: object, options: Mapping[str, object]) -> str:
    text = json.dumps(document, ensure_ascii=False)
    return str(_library().LLMatcher.grammar_from_json_schema(text, overrides=dict(options)))


def _schema_fault(document: object, options: Mapping[str, object]) -> str:
    try:
        return _fault(_schema_grammar(document, options))
    except ValueError as error:
        return str(error)


def _narrowed(
    document: schemas.Schema, options: Mapping[str, object], fault: str
) -> tuple[schemas.Path, str]:
    """The innermost schema that is refused by itself, and why."""
    shared: schemas.Schema = {key: document[key] for key in ("$defs", "definitions") if key in document}
    path: schemas.Path = ()
    for trials, place in enumerate(schemas.reachable(document)):
        if trials == MAX_TRIALS:
            break
        inside = place.path[: len(path)] == path or "$defs" in place.path or "definitions" in place.path
        if place.path and inside and (found := _schema_fault({**shared, **place.schema}, options)):
            path, fault = place.path, found
    return path, fault


def _code(fault: str, otherwise: str) -> str:
    """For programs: what is too much, what is wrong in itself, and what else it is."""
    if _reason(fault) == TOO_COMPLEX:
        return "request_too_complex"
    return "invalid_value" if any(words in fault for words in UNFIT) else otherwise


def _at(constraint: Constraint, path: schemas.Path, reason: str, code: str) -> ConstraintError:
    way = tuple(shown(step, 40) for step in path[:MAX_PATH])
    message = f"{what(constraint)}: In context={way!r}, {reason}."
    return ConstraintError(message, constraint.field, code)


# The others


def _regex(constraint: Constraint) -> str:
    return _checked(constraint, _library().LLMatcher.grammar_from_regex(_plain_classes(constraint.text)))


def _plain_classes(pattern: str) -> str:
    r"""With ASCII's \d and \w, but where they are excluded: of Unicode each library knows another version."""
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


def _choice(constraint: Constraint) -> str:
    choices = msgspec.json.decode(constraint.text, type=list[str])
    return _checked(constraint, _lark("start: " + " | ".join(_literal(one) for one in choices)))


def _literal(text: str) -> str:
    """As Lark's syntax quotes it; json leaves some control characters as they are."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(f"\\u{ord(one):04x}" if unicodedata.category(one) == "Cc" else one for one in quoted)


def _grammar(constraint: Constraint) -> str:
    _library()
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415 -- see `_library`

    try:
        text = any_to_lark(constraint.text)
    except Exception as error:  # whatever its reader trips over
        reason = _reason(str(error) or type(error).__name__)
        raise ConstraintError(f"{what(constraint)}: {reason}.", constraint.field) from None
    for option in _options(text):
        if option not in HONOURED_OPTIONS:
            message = f"{what(constraint)}: the option {shown(option)} of a rule is not supported."
            raise unsupported(message, constraint.field)
    if "%llguidance" in constraint.text:
        raise unsupported(f"{what(constraint)}: %llguidance is not supported.", constraint.field)
    return _checked(constraint, _lark(text))


def _options(text: str) -> Iterator[str]:
    for found in OPTIONS.finditer(text):
        yield from (one.partition("=")[0].strip() for one in found[1].split(","))


def _lark(text: str) -> str:
    return str(_library().LLMatcher.grammar_from_lark(text))


def _checked(constraint: Constraint, grammar: str) -> str:
    if fault := _fault(grammar):
        message = f"{what(constraint)}: {_reason(fault)}."
        raise ConstraintError(message, constraint.field, _code(fault, "invalid_value"))
    return grammar


_BUILDERS: Mapping[Kind, Callable[[Constraint], str]] = {
    "json_schema": _json,
    "json_object": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
