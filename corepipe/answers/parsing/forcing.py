"""Grammars that force a model to call tools in its own format, as llguidance's Lark text.

`AnswerReader` reads every text that such a grammar allows as calls whose arguments fit their schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from corepipe.answers.parsing.formats import AnswerFormat, Body, CallFormat, Tags
from corepipe.answers.parsing.tag_calls import value_types
from corepipe.answers.parsing.tools import FunctionDefinition, OfferedTools, parameters_of
from corepipe.errors import UserError
from corepipe.structured.lark import ANY_TEXT, marker, quoted
from corepipe.structured.schemas import Schema, resolved, texts

MAX_REFERENCES = 8
MAX_CALLS = 16
"""The most calls of an answer: a model that never stops calling is stopped."""
_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The white space of JSON in models' training texts: one space, and no endless run of spaces."""


def writes_calls(
    reading: AnswerFormat | None, offer: OfferedTools | None, tokens: Mapping[str, int], wanted: str = ""
) -> bool:
    """Tells whether `answer_grammar` has rules for calls: where calls are forced, where they may take the
    place of the grammar `wanted`, and where they are strict and can be distinguished from text."""
    if reading is None or reading.calls is None or offer is None:
        return False
    return offer.forced or bool(wanted) or (offer.strict and _tells_calls(reading, reading.calls, tokens))


def answer_grammar(
    reading: AnswerFormat | None,
    offer: OfferedTools | None,
    tokens: Mapping[str, int],
    wanted: str = "",
    narrowed: Mapping[str, Schema] = MappingProxyType({}),
) -> str:
    """Returns the grammar of the whole answer, whose reasoning stays free; "": any answer.

    It allows calls where they are forced; else the grammar `wanted` of the text (Lark, or llguidance's list
    of grammars), or calls where there are tools; else strict calls between free text.  tokens: ids of added
    tokens, which free text cannot hold.  narrowed: where it `writes_calls`, the schemas of tools that may be
    called, by name, as `grammars.schema_of` returns them.  Raises UserError, with the path of the parameters
    at fault, for what cannot be forced in the model's format.
    """
    if reading is None:
        return wanted
    before, thoughts = _before(reading, tokens), _thoughts(reading, tokens)
    if reading.calls is None or offer is None or not writes_calls(reading, offer, tokens, wanted):
        return _with(wanted, _rules(f"start: {before}@answer", thoughts)) if wanted and before else wanted
    calls = _CallGrammarWriter(reading.calls, tokens, narrowed)
    if offer.forced:
        return _rules(f"start: {before}calls", thoughts, calls.rules(offer))
    if wanted:
        if calls.form.bare:
            raise UserError(
                "tools: beside tools, the answer cannot be constrained in this model's format of calls.",
                "tools",
            )
        return _with(wanted, _rules(f"start: {before}(@answer | calls)", thoughts, calls.rules(offer)))
    start = f"start: {before}(said calls_opened){{0,{1 if offer.single else MAX_CALLS}}} UNOPENED"
    return _rules(start, thoughts, calls.said(), calls.rules(offer))


def _tells_calls(reading: AnswerFormat, form: CallFormat, tokens: Mapping[str, int]) -> bool:
    """Tells whether a grammar can distinguish calls from text, and text from reasoning before it."""
    reasoning = reading.reasoning
    begun = reasoning is None or reading.thinking or reading.thought or reasoning.opening in tokens
    return bool(form.opening) and not form.bare and begun


def _rules(start: str, *groups: Sequence[str]) -> str:
    return "\n".join([start, *(rule for group in groups for rule in group), ""])


def _with(wanted: str, lark: str) -> str:
    """Puts the grammar `wanted` (or the first of its list) into another one, as `@answer`."""
    listed = json.loads(wanted)["grammars"] if wanted.lstrip().startswith("{") else [{"lark_grammar": wanted}]
    first, *others = listed
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**first, "name": "answer"}, *others]})


def _before(reading: AnswerFormat, tokens: Mapping[str, int]) -> str:
    """Writes the rule of the reasoning: required where the prompt has begun it, else optional."""
    if reading.reasoning is None or reading.thought:
        return ""
    opening = marker(reading.reasoning.opening, tokens)
    return "thoughts " if reading.thinking else f"({opening} thoughts)? "


def _thoughts(reading: AnswerFormat, tokens: Mapping[str, int]) -> list[str]:
    reasoning = reading.reasoning
    if reasoning is None or reading.thought:
        return []
    if reasoning.closing in tokens:
        return [f'thoughts: {ANY_TEXT} {marker(reasoning.closing, tokens)} "\\n\\n"']
    return ['thoughts: thought "\\n\\n"', f"thought[suffix={quoted(reasoning.closing)}]: {ANY_TEXT}"]


class _CallGrammarWriter:
    """Writes the rules of calls in one format."""

    def __init__(self, form: CallFormat, tokens: Mapping[str, int], narrowed: Mapping[str, Schema]) -> None:
        self.form = form
        self._tokens = tokens
        self._narrowed = narrowed
        self.between = quoted("\n") if form.lead and form.separator is None else ""

    def rules(self, offer: OfferedTools) -> list[str]:
        """Writes `calls`: all that may come; `calls_once`: those of one opening; `calls_opened`: after it."""
        form = self.form
        called = [(at, tool) for at, tool in enumerate(offer.tools) if tool in offer.callable]
        rules = [rule for at, tool in called for rule in self._call(at, tool)]
        one = " | ".join(f"call_{at}" for at, _ in called)
        opening = "" if form.bare else marker(form.opening, self._tokens)
        closing = "" if form.bare else marker(form.closing, self._tokens)
        lead = quoted(form.lead) if form.lead else ""
        first, last = ('"["', '"]"') if form.listed else ("", "")
        more = "" if offer.single else f"{{0,{MAX_CALLS - 1}}}"
        several, tail = "calls: calls_once", ""
        if more and form.separator is None:
            several += f" ({self.between} calls_once){more}"
        elif more:
            tail = f"({quoted(form.separator or '')} call){more}"
        opened = f"calls_opened: {lead} {first} call {tail} {last} {lead} {closing}"
        return [several, f"calls_once: {opening} calls_opened", opened, f"call: {one}", *rules]

    def said(self) -> list[str]:
        """Writes `UNOPENED`: text that opens no calls; `said`: such a text, and then the opening."""
        opening = self.form.opening
        unopened = f"UNOPENED: {ANY_TEXT} & ~/(?s:.*{re.escape(opening)}.*)/"
        if opening in self._tokens:
            return [unopened, f"said: UNOPENED {marker(opening, self._tokens)}"]
        return [unopened, f"said[suffix={quoted(opening)}]: {ANY_TEXT}"]

    def _call(self, at: int, tool: FunctionDefinition) -> Iterator[str]:
        form, schema = self.form, self._narrowed[tool.name]
        if form.body is Body.OBJECT:
            head = f"{{{_json(form.name_key)}: {_json(tool.name)}, {_json(form.argument_keys[0])}: "
            yield f'call_{at}: {quoted(head)} args_{at} "}}"'
            yield f"args_{at}: %json {_schema(schema)}"
        elif form.body is Body.NAMED:
            yield f"call_{at}: {quoted(tool.name)} {marker(form.after_name, self._tokens)} args_{at}"
            yield f"args_{at}: %json {_schema(schema)}"
        else:
            properties = _properties(tool.schema, schema, parameters_of(at))
            if form.body is Body.TAGS:
                yield from _tagged(at, tool.name, properties, form.tags)
            else:
                yield from _python(at, tool.name, properties)


_json = json.dumps


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _TIGHT})


class _Property:
    """A parameter that is written by itself, with the definitions that its schema refers to.

    given: the schema of all parameters, as the client sent it; root: the same, narrowed.
    """

    def __init__(self, name: str, given: Mapping[str, Any], root: Schema, where: str) -> None:
        self.name = name
        self.required = name in texts(root.get("required"))
        self.where = f"{where}.properties.{name}"
        self.types = value_types(given, name)
        self._schema = _followed(given.get("properties", {}).get(name), given)
        self._choices = [_followed(one, given) for one in self._schema.get("anyOf", ())]
        self._narrowed = dict(_said(root["properties"][name]))
        self._narrowed |= {key: root[key] for key in ("$defs", "definitions") if key in root}

    @property
    def text(self) -> Mapping[str, Any]:
        """The schema of its text; where it is a text or null, that of the text."""
        return next((one for one in self._choices if one.get("type") == "string"), self._schema)

    @property
    def bare(self) -> bool:
        """Tells whether any value of its types is allowed."""
        plain = {"type", "anyOf", "title", "description", "default"}
        return all(one.keys() <= plain for one in self._choices or [self._schema])

    def json(self) -> str:
        return _schema(self._narrowed)


def _followed(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolves a schema that is only a reference, as pydantic writes an enum."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or schema.keys() - {"title", "description", "default"} != {"$ref"}:
            break
        schema = resolved(root, str(schema["$ref"]))[0]
    return _said(schema)


def _said(schema: object) -> Mapping[str, Any]:
    """Returns the schema; `true` is one, too, and demands nothing."""
    return schema if isinstance(schema, dict) else {}


def _properties(given: Mapping[str, Any], narrowed: Schema, where: str) -> list[_Property]:
    """Returns each parameter by itself.  Raises UserError where they cannot be separated."""
    known = given.keys() - {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    known -= {"title", "description", "$schema", "$id", "examples", "default"}
    if known:
        what = ", ".join(sorted(known))
        raise UserError(f"{where}: {what} cannot be enforced in this model's format of calls.", where)
    named = narrowed.get("properties", {})
    return [_Property(name, given, narrowed, where) for name, one in named.items() if one is not False]


def _sequence(
    at: int, texts: Sequence[str], properties: Sequence[_Property], separator: str
) -> Iterator[str]:
    """Writes rules `some_AT_I` and `more_AT_I`: texts from number I on, before and after the first one."""
    last = len(properties)
    for kind, lead in (("some", ""), ("more", separator)):
        for number, (text, one) in enumerate(zip(texts, properties, strict=True)):
            written = f"{lead} {text} more_{at}_{number + 1}"
            without = "" if one.required else f" | {kind}_{at}_{number + 1}"
            yield f"{kind}_{at}_{number}: {written}{without}"
        yield f'{kind}_{at}_{last}: ""'


def _python(at: int, name: str, properties: Sequence[_Property]) -> Iterator[str]:
    yield f'call_{at}: {quoted(name + "(")} some_{at}_0 ")"'
    texts = []
    for number, one in enumerate(properties):
        if not one.name.isidentifier():
            raise UserError(f"{one.where}: the name is not valid for a Python argument.", one.where)
        yield f"value_{at}_{number}: %json {one.json()}"
        texts.append(f"{quoted(one.name + '=')} value_{at}_{number}")
    yield from _sequence(at, texts, properties, '", "')


def _tagged(at: int, name: str, properties: Sequence[_Property], tags: Tags) -> Iterator[str]:
    head, foot = quoted(f"{tags.function}{name}{tags.mark}\n"), quoted(tags.function_end)
    yield f"call_{at}: {head} some_{at}_0 {foot}"
    texts = []
    for number, one in enumerate(properties):
        if not one.name or tags.mark in one.name or any(char.isspace() for char in one.name):
            raise UserError(f"{one.where}: the name cannot stand in a tag.", one.where)
        held = _tag_value(one)
        if held is None:
            body, end = _tag_text(one, tags)
            yield f"value_{at}_{number}[suffix={quoted(end)}]: {body}"
            closing = quoted("\n")
        else:
            yield f"value_{at}_{number}: {held}"
            closing = quoted(f"\n{tags.parameter_end}\n")
        opening = quoted(f"{tags.parameter}{one.name}{tags.mark}\n")
        texts.append(f"{opening} value_{at}_{number} {closing}")
    yield from _sequence(at, texts, properties, "")


def _tag_value(one: _Property) -> str | None:
    """Writes the rule of a value: JSON, or one of some texts; None: any text."""
    types = one.types
    if types and "string" not in types:
        return f"%json {one.json()}"
    if not types <= {"string", "null"} and not one.bare:
        raise UserError(f"{one.where}: a union of text and others cannot be enforced in tags.", one.where)
    text = one.text
    beyond = text.keys() & {"pattern", "format", "$ref", "allOf", "not"}
    if beyond:
        what = ", ".join(sorted(beyond))
        raise UserError(f"{one.where}: {what} cannot be enforced in this model's format of calls.", one.where)
    words = text.get("enum", [text["const"]] if "const" in text else None)
    if words is None:
        return None
    return " | ".join(quoted(word) for word in words if isinstance(word, str))


def _tag_text(one: _Property, tags: Tags) -> tuple[str, str]:
    """Returns the pattern of a text and its end: limited in length, or up to the closing of its tag."""
    least, most = one.text.get("minLength", 0), one.text.get("maxLength", "")
    if least == 0 and most == "":
        return ANY_TEXT, tags.parameter_end
    return f"/(?s:[^<]{{{least},{most}}})/", f"\n{tags.parameter_end}"
