"""Structural tags: text that is free up to a trigger, after which a tag with a fixed form follows, and so on.

They have vLLM's forms: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`, or
`{"format": {"type": ...}}` with the formats below, after xgrammar's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corepipe.structured.lark import ANY_TEXT, marker, quoted
from corepipe.structured.schemas import Path, Schema, SchemaError

MOST = 512
"""The most tags, triggers or elements of a list."""

Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """An object without unknown members."""


class JsonSchema(_Strict, frozen=True, tag="json_schema"):
    """JSON that fits a schema."""

    json_schema: dict[str, Any]


class ConstString(_Strict, frozen=True, tag="const_string"):
    """A constant text."""

    value: Text


class AnyText(_Strict, frozen=True, tag="any_text"):
    """Any text, up to the end of its tag."""


class InOrder(_Strict, frozen=True, tag="sequence"):
    """Formats one after the other."""

    elements: Annotated[list[Format], Meta(min_length=1, max_length=MOST)]


class AnyOf(_Strict, frozen=True, tag="or"):
    """One of several formats."""

    elements: Annotated[list[Format], Meta(min_length=1, max_length=MOST)]


class Tag(_Strict, frozen=True, tag="tag"):
    """A beginning, a content, and an end, which may be empty after JSON, which ends by itself."""

    begin: Text
    content: Format
    end: Annotated[str, Meta(max_length=1024)]


class TriggeredTags(_Strict, frozen=True, tag="triggered_tags"):
    """Free text; after a trigger it continues as one of the tags that begin with the trigger."""

    triggers: Annotated[list[Text], Meta(min_length=1, max_length=MOST)]
    tags: Annotated[list[Tag], Meta(min_length=1, max_length=MOST)]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(_Strict, frozen=True, tag="tags_with_separator"):
    """Tags with a text between them, and no other text."""

    tags: Annotated[list[Tag], Meta(min_length=1, max_length=MOST)]
    separator: Text
    at_least_one: bool = False
    stop_after_first: bool = False


Format = JsonSchema | ConstString | AnyText | InOrder | AnyOf | Tag | TriggeredTags | TagsWithSeparator


class _Formatted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: Format
    type: Literal["structural_tag"] = "structural_tag"


class _Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    begin: Text
    end: Annotated[str, Meta(max_length=1024)]
    schema: dict[str, Any] | None = None


class _Older(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    structures: Annotated[list[_Structure], Meta(min_length=1, max_length=MOST)]
    triggers: Annotated[list[Text], Meta(min_length=1, max_length=MOST)]
    type: Literal["structural_tag"] = "structural_tag"

    def format(self) -> TriggeredTags:
        """Converts it to the newer form."""
        tags = [Tag(one.begin, JsonSchema(one.schema or {}), one.end) for one in self.structures]
        return TriggeredTags(self.triggers, tags)


def format_of(document: Mapping[str, Any]) -> tuple[Format, Callable[[Path], Path]]:
    """Returns the format in a document, and a function from a path in the format to one in the document.

    Raises SchemaError.
    """
    older = "structures" in document or "triggers" in document
    try:
        if older:
            return msgspec.convert(document, _Older).format(), _older_path
        return msgspec.convert(document, _Formatted).format, lambda path: ("format", *path)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at `$")
        path = tuple(re.findall(r"\w+", where))
        unknown = path[-1:] == ("type",) and said.startswith("Invalid value")
        reason = f"{said.replace('Invalid value', 'a format')} is not supported" if unknown else said
        raise SchemaError(path, reason, unsupported=unknown) from None


def _older_path(path: Path) -> Path:
    match path:
        case ("tags", number, "content", "json_schema", *rest):
            return ("structures", number, "schema", *rest)
        case ("tags", number, *rest):
            return ("structures", number, *rest)
    return path


class TagGrammarWriter:
    """Writes a format as rules of llguidance's Lark text.

    schema: returns a schema as text for a grammar.  check: called with each text that an answer may need
    exactly.  Both get paths in the format, and may raise any error.  tokens: ids of added tokens, which free
    text cannot hold; empty: markers are written in characters.
    """

    def __init__(
        self,
        schema: Callable[[Path, Schema], str],
        check: Callable[[Path, str], None],
        tokens: Mapping[str, int],
    ) -> None:
        self._schema = schema
        self._check = check
        self._tokens = tokens
        self._marks = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
        self._rules: list[str] = []

    def lark(self, form: Format) -> str:
        """Writes all rules.  Raises SchemaError for formats that no grammar can distinguish."""
        start = self._free((), "") if isinstance(form, AnyText) else self._written((), form, last=True)
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _rule(self, kind: str, body: str, options: str = "") -> str:
        """Adds a rule and returns its name; one in capitals is a lexeme."""
        name = f"{kind}_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _written(self, path: Path, form: Format, *, last: bool = False) -> str:
        """Writes a format as an expression.  last: nothing follows it in the answer."""
        match form:
            case JsonSchema():
                schema = self._schema((*path, "json_schema"), form.json_schema)
                return self._rule("json", f"%json {schema}")
            case ConstString():
                return self._text((*path, "value"), form.value)
            case Tag():
                return self._tag(path, form, form.begin)
            case InOrder() | AnyOf():
                return self._several(path, form, last=last)
            case TagsWithSeparator():
                return self._separated(path, form)
            case TriggeredTags() if last:
                return self._triggered(path, form)
        where = "where nothing follows" if isinstance(form, TriggeredTags) else "as the content of a tag"
        name = type(form).__struct_config__.tag
        raise SchemaError(path, f"'{name}' is supported {where} alone", unsupported=True)

    def _several(self, path: Path, form: InOrder | AnyOf, *, last: bool) -> str:
        in_order, final = isinstance(form, InOrder), len(form.elements) - 1
        parts = [
            self._written((*path, "elements", str(at)), one, last=last and (not in_order or at == final))
            for at, one in enumerate(form.elements)
        ]
        return self._rule("all", " ".join(parts)) if in_order else self._rule("one", " | ".join(parts))

    def _text(self, path: Path, text: str) -> str:
        """Writes a text, in which added tokens stand for themselves."""
        self._check(path, text)
        parts, at = [], 0
        for found in self._marks.finditer(text):
            parts += [quoted(text[at : found.start()]), marker(found[0], self._tokens)]
            at = found.end()
        return " ".join(part for part in [*parts, quoted(text[at:])] if part != '""') or '""'

    def _tag(self, path: Path, tag: Tag, begin: str) -> str:
        """Writes the rest of a tag from `begin`, the rest of its beginning, on."""
        first = self._text((*path, "begin"), begin) if begin else '""'
        if isinstance(tag.content, AnyText):
            if not tag.end:
                raise SchemaError((*path, "end"), "a tag around any text needs an end")
            self._check((*path, "end"), tag.end)
            return self._rule("tag", f"{first} {self._free((*path, 'content'), tag.end)}")
        content = self._written((*path, "content"), tag.content)
        end = self._text((*path, "end"), tag.end) if tag.end else ""
        return self._rule("tag", f"{first} {content} {end}")

    def _free(self, path: Path, end: str) -> str:
        """Writes any text up to an end; without one, up to the end of the answer."""
        if not end:
            return self._rule("TEXT", ANY_TEXT)
        if end in self._tokens:
            return f"{self._rule('TEXT', ANY_TEXT)} {marker(end, self._tokens)}"
        if self._marks.search(end):
            raise SchemaError(path, "an end of a special token and text is not supported", unsupported=True)
        return self._rule("text", ANY_TEXT, f"[suffix={quoted(end)}]")

    def _separated(self, path: Path, form: TagsWithSeparator) -> str:
        tag = self._rule("one", " | ".join(self._tags(path, form.tags)))
        separator = self._text((*path, "separator"), form.separator)
        several = tag if form.stop_after_first else f"{tag} ({separator} {tag})*"
        return self._rule("tags", several if form.at_least_one else f"({several})?")

    def _tags(self, path: Path, tags: Sequence[Tag]) -> list[str]:
        return [self._tag((*path, "tags", str(at)), tag, tag.begin) for at, tag in enumerate(tags)]

    def _triggered(self, path: Path, form: TriggeredTags) -> str:
        """Writes triggered tags.  A required tag comes first: free text before it might never end."""
        several = " | ".join(self._after_text(path, form))
        first = f"({' | '.join(self._tags(path, form.tags))})" if form.at_least_one else ""
        if form.stop_after_first and first:
            return first
        rest = self._rule("TEXT", _without(form.triggers))
        if form.stop_after_first:
            return f"({several} | {rest})"
        return f"{first} ({several})* {rest}"

    def _after_text(self, path: Path, form: TriggeredTags) -> Iterator[str]:
        """Yields for each trigger the text up to it, and the tags that it begins."""
        begun: dict[str, list[str]] = {trigger: [] for trigger in form.triggers}
        for at, tag in enumerate(form.tags):
            where = (*path, "tags", str(at))
            fitting = [trigger for trigger in form.triggers if tag.begin.startswith(trigger)]
            if not fitting:
                raise SchemaError((*where, "begin"), "it begins with none of the triggers")
            trigger = min(fitting, key=len)  # the first to be complete
            self._check((*where, "begin"), trigger)
            begun[trigger].append(self._tag(where, tag, tag.begin[len(trigger) :]))
        for trigger, tags in begun.items():
            if tags:
                yield f"{self._up_to(path, trigger, form.triggers)} ({' | '.join(tags)})"

    def _up_to(self, path: Path, trigger: str, triggers: Sequence[str]) -> str:
        """Writes text up to and including a trigger."""
        if trigger in self._tokens:
            return f"{self._rule('TEXT', _without(triggers))} {marker(trigger, self._tokens)}"
        return self._free((*path, "triggers"), trigger)


def _without(texts: Sequence[str]) -> str:
    """Writes a pattern of text that contains none of these."""
    return f"{ANY_TEXT} & ~/(?s:.*({'|'.join(_escaped(text) for text in texts)}).*)/"


def _escaped(text: str) -> str:
    """Escapes a text for a pattern between slashes: all but letters and digits as numbers."""
    return "".join(char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}" for char in text)
