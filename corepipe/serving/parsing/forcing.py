"""Grammars that have a model call tools, in its own format, as llguidance's Lark text.

What such a grammar allows is read as calls (`AnswerReader`) whose arguments are what their schemas say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corepipe.errors import UserError
from corepipe.serving.constraints import Constraint
from corepipe.serving.parsing.formats import Body, CallFormat, Tags
from corepipe.serving.parsing.reading import Reading
from corepipe.serving.parsing.tag_calls import referred, value_types
from corepipe.serving.parsing.tools import FunctionDefinition, Offer

MAX_CALLS = 16
"""Of an answer: a model that never stops calling is stopped."""
ANY_TEXT = "/(?s:.*)/"
_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As models were shown JSON: one space, and none that goes on for ever."""


def schemas_of(
    form: CallFormat | None, offer: Offer | None, *, constrained: bool
) -> Iterator[tuple[str, Constraint]]:
    """By tool: the schemas that calls may have to fit, to be checked and narrowed before `answer_grammar`.

    constrained: whether the answer is held to something besides.
    """
    if form is None or offer is None or not (offer.forced or offer.strict or constrained):
        return
    for at, tool in enumerate(offer.tools):
        if tool in offer.callable:
            apart = {"additionalProperties": False} if form.body in (Body.TAGS, Body.PYTHON) else {}
            text = json.dumps({**tool.schema, **apart})
            yield tool.name, Constraint("json_schema", text, f"tools[{at}].function.parameters")


def answer_grammar(
    reading: Reading | None, offer: Offer | None, tokens: Mapping[str, int], wanted: str = ""
) -> str:
    """What the answer must be, its reasoning left free; "": anything.

    Calls where they are forced; else what is `wanted` of the text (Lark, or llguidance's list of grammars),
    or calls where there are tools; else strict calls wherever an opening is.  tokens: ids of added tokens,
    which free text cannot hold; the offer's schemas are narrowed (`schemas_of`).  Raises UserError, with the
    path of the parameters at fault, for what cannot be forced in the model's format.
    """
    if reading is None:
        return wanted
    form, before = reading.calls, _before(reading, tokens)
    calls = _Writer(form, tokens) if form is not None and offer is not None else None
    if calls is not None and offer is not None and offer.forced:
        return _rules(f"start: {before}calls", _thoughts(reading, tokens), calls.rules(offer))
    if wanted:
        if calls is None or offer is None:
            return (
                _with(wanted, _rules(f"start: {before}@answer", _thoughts(reading, tokens)))
                if before
                else wanted
            )
        if calls.form.bare:
            message = "response_format: beside tools it cannot be held to in the way this model writes calls."
            raise UserError(message, "response_format")
        either = f"start: {before}(@answer | calls)"
        return _with(wanted, _rules(either, _thoughts(reading, tokens), calls.rules(offer)))
    if calls is None or offer is None or not offer.strict or not _tells_calls(reading, calls.form, tokens):
        return ""
    start = f"start: {before}(said calls_opened){{0,{1 if offer.single else MAX_CALLS}}} UNOPENED"
    return _rules(start, _thoughts(reading, tokens), calls.said(), calls.rules(offer))


def _tells_calls(reading: Reading, form: CallFormat, tokens: Mapping[str, int]) -> bool:
    """Whether a grammar can tell calls from what is said, and that from reasoning that may come first."""
    reasoning = reading.reasoning
    begun = reasoning is None or reading.thinking or reading.thought or reasoning.opening in tokens
    return bool(form.opening) and not form.bare and begun


def _rules(start: str, *groups: Sequence[str]) -> str:
    return "\n".join([start, *(rule for group in groups for rule in group), ""])


def _with(wanted: str, lark: str) -> str:
    """A grammar with another inside, as `@answer`: the first of its own list, if it is one."""
    listed = json.loads(wanted)["grammars"] if wanted.lstrip().startswith("{") else [{"lark_grammar": wanted}]
    first, *others = listed
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**first, "name": "answer"}, *others]})


def _before(reading: Reading, tokens: Mapping[str, int]) -> str:
    """The reasoning: that which the prompt has begun, or some if the model wants it."""
    if reading.reasoning is None or reading.thought:
        return ""
    opening = _marker(reading.reasoning.opening, tokens)
    return "thoughts " if reading.thinking else f"({opening} thoughts)? "


def _thoughts(reading: Reading, tokens: Mapping[str, int]) -> list[str]:
    reasoning = reading.reasoning
    if reasoning is None or reading.thought:
        return []
    if reasoning.closing in tokens:
        return [f'thoughts: {ANY_TEXT} {_marker(reasoning.closing, tokens)} "\\n\\n"']
    return ['thoughts: thought "\\n\\n"', f"thought[suffix={_quoted(reasoning.closing)}]: {ANY_TEXT}"]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _marker(text: str, tokens: Mapping[str, int]) -> str:
    """A marker: the token that it is, or its characters; nothing for none."""
    if not text:
        return ""
    return f"<[{tokens[text]}]>" if text in tokens else _quoted(text)


class _Writer:
    """Writes the rules of calls in one format."""

    def __init__(self, form: CallFormat, tokens: Mapping[str, int]) -> None:
        self.form = form
        self._tokens = tokens
        self.between = _quoted("\n") if form.lead and form.separator is None else ""

    def rules(self, offer: Offer) -> list[str]:
        """`calls`: one or as many as are wanted; `calls_once`: of one opening; `calls_opened`: after it."""
        form = self.form
        rules = [
            rule
            for at, tool in enumerate(offer.tools)
            if tool in offer.callable
            for rule in self._call(at, tool)
        ]
        one = " | ".join(f"call_{at}" for at, tool in enumerate(offer.tools) if tool in offer.callable)
        opening = "" if form.bare else _marker(form.opening, self._tokens)
        closing = "" if form.bare else _marker(form.closing, self._tokens)
        lead = _quoted(form.lead) if form.lead else ""
        first, last = ('"["', '"]"') if form.listed else ("", "")
        more = "" if offer.single else f"{{0,{MAX_CALLS - 1}}}"
        several, tail = "calls: calls_once", ""
        if more and form.separator is None:
            several += f" ({self.between} calls_once){more}"
        elif more:
            tail = f"({_quoted(form.separator or '')} call){more}"
        opened = f"calls_opened: {lead} {first} call {tail} {last} {lead} {closing}"
        return [several, f"calls_once: {opening} calls_opened", opened, f"call: {one}", *rules]

    def said(self) -> list[str]:
        """`UNOPENED`: text that opens no calls; `said`: such a text, and then the opening."""
        opening = self.form.opening
        unopened = f"UNOPENED: {ANY_TEXT} & ~/(?s:.*{re.escape(opening)}.*)/"
        if opening in self._tokens:
            return [unopened, f"said: UNOPENED {_marker(opening, self._tokens)}"]
        return [unopened, f"said[suffix={_quoted(opening)}]: {ANY_TEXT}"]

    def _call(self, at: int, tool: FunctionDefinition) -> Iterator[str]:
        form, where = self.form, f"tools[{at}].function.parameters"
        schema = tool.schema
        if form.body is Body.OBJECT:
            head = f"{{{_json(form.name_key)}: {_json(tool.name)}, {_json(form.argument_keys[0])}: "
            yield f'call_{at}: {_quoted(head)} args_{at} "}}"'
            yield f"args_{at}: %json {_schema(schema)}"
        elif form.body is Body.NAMED:
            yield f"call_{at}: {_quoted(tool.name)} {_marker(form.after_name, self._tokens)} args_{at}"
            yield f"args_{at}: %json {_schema(schema)}"
        elif form.body is Body.TAGS:
            yield from _tagged(at, tool.name, _properties(schema, where), form.tags)
        else:
            yield from _python(at, tool.name, _properties(schema, where))


_json = json.dumps
_SAID = frozenset({"title", "description", "default", "examples", "deprecated"})
"""Keywords that ask for nothing."""
_OF_TEXTS = frozenset({"enum", "const", "minLength", "maxLength"})
"""... those that texts are held to in tags, and those that they cannot be held to."""
_BEYOND_TEXTS = frozenset({"pattern", "format", "$ref", "allOf", "anyOf", "oneOf", "not", "if"})
_MAX_REFERENCES = 8


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _TIGHT})


class _Property:
    """A parameter that is written by itself: its schema knows what it refers to."""

    def __init__(self, name: str, schema: object, root: Mapping[str, Any], where: str) -> None:
        self.name = name
        self.required = name in root.get("required", ())
        self.where = f"{where}.properties.{name}"
        self.schema = _resolved(schema, root)
        self.choices = [_resolved(one, root) for one in self.schema.get("anyOf", [self.schema])]
        self.types = value_types(root, name)
        self._shared = {key: root[key] for key in ("$defs", "definitions") if key in root}

    @property
    def bare(self) -> bool:
        """Whether any value of its types will do."""
        every = [self.schema, *self.choices]
        return all(one.keys() <= _SAID | {"type", "anyOf"} for one in every)

    def texts(self) -> list[Mapping[str, Any]]:
        """The schemas of the texts that it may be.  Raises UserError for what tags cannot hold them to."""
        found = [one for one in self.choices if one.get("type") != "null"]
        beyond = {key for one in found for key in one.keys() & _BEYOND_TEXTS}
        if "anyOf" in self.schema:
            beyond |= self.schema.keys() & (_BEYOND_TEXTS | _OF_TEXTS) - {"anyOf"}
        if beyond:
            what = ", ".join(sorted(beyond))
            message = f"{self.where}: {what} cannot be forced in the way this model writes calls."
            raise UserError(message, self.where)
        return found

    def json(self) -> str:
        return _schema({**self.schema, **self._shared})


def _resolved(schema: object, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema refers to, where it does nothing else."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or "$ref" not in schema or schema.keys() - _SAID - {"$ref"}:
            break
        schema = referred(schema["$ref"], root)
    return schema if isinstance(schema, dict) else {}


def _properties(schema: Mapping[str, Any], where: str) -> list[_Property]:
    """Each by itself.  Raises UserError where they cannot be taken apart."""
    known = schema.keys() - {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    known -= {"title", "description", "$schema", "$id", "examples", "default"}
    properties = schema.get("properties", {})
    if known or not isinstance(properties, dict):
        what = ", ".join(sorted(known)) or "properties"
        raise UserError(f"{where}: {what} cannot be forced in the way this model writes calls.", where)
    return [_Property(name, one, schema, where) for name, one in properties.items()]


def _sequence(
    at: int, texts: Sequence[str], properties: Sequence[_Property], separator: str
) -> Iterator[str]:
    """Rules `some_AT_I` and `more_AT_I`: the texts from number I on, before and after the first of them."""
    last = len(properties)
    for kind, lead in (("some", ""), ("more", separator)):
        for number, (text, one) in enumerate(zip(texts, properties, strict=True)):
            written = f"{lead} {text} more_{at}_{number + 1}"
            without = "" if one.required else f" | {kind}_{at}_{number + 1}"
            yield f"{kind}_{at}_{number}: {written}{without}"
        yield f'{kind}_{at}_{last}: ""'


def _python(at: int, name: str, properties: Sequence[_Property]) -> Iterator[str]:
    yield f'call_{at}: {_quoted(name + "(")} some_{at}_0 ")"'
    texts = []
    for number, one in enumerate(properties):
        if not one.name.isidentifier():
            raise UserError(f"{one.where}: no name that Python has for an argument.", one.where)
        yield f"value_{at}_{number}: %json {one.json()}"
        texts.append(f"{_quoted(one.name + '=')} value_{at}_{number}")
    yield from _sequence(at, texts, properties, '", "')


def _tagged(at: int, name: str, properties: Sequence[_Property], tags: Tags) -> Iterator[str]:
    head, foot = _quoted(f"{tags.function}{name}{tags.mark}\n"), _quoted(tags.function_end)
    yield f"call_{at}: {head} some_{at}_0 {foot}"
    texts = []
    for number, one in enumerate(properties):
        if not one.name or tags.mark in one.name or any(char.isspace() for char in one.name):
            raise UserError(f"{one.where}: no name that a tag can have.", one.where)
        yield f"value_{at}_{number}: {_tag_value(one)}"
        opening, closing = f"{tags.parameter}{one.name}{tags.mark}\n", f"\n{tags.parameter_end}\n"
        texts.append(f"{_quoted(opening)} value_{at}_{number} {_quoted(closing)}")
    yield from _sequence(at, texts, properties, "")


def _tag_value(one: _Property) -> str:
    """Text as it is, without what may be a tag; anything else as JSON."""
    types = one.types
    if types and "string" not in types:
        return f"%json {one.json()}"
    if not types <= {"string", "null"} and not one.bare:
        raise UserError(f"{one.where}: text or something else cannot be forced in tags.", one.where)
    return " | ".join(dict.fromkeys(rule for text in one.texts() for rule in _text_rules(text)))


def _text_rules(text: Mapping[str, Any]) -> Iterator[str]:
    """What texts of a schema look like in tags."""
    words = text.get("enum", [text["const"]] if "const" in text else None)
    if words is not None:
        yield from (_quoted(word) for word in words if isinstance(word, str))
        return
    least, most = text.get("minLength", 0), text.get("maxLength", "")
    yield f"/(?s:[^<]{{{least},{most}}})/" if least or most != "" else r"/(?s:([^<]|<[^\/<])*)/"
