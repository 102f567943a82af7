"""Readers of tool calls in each format: from the text between the opening and closing markers to calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corepipe.answers.parsing.call_parts import CallParts, parsed
from corepipe.answers.parsing.formats import Body, CallFormat
from corepipe.answers.parsing.python_calls import python_calls
from corepipe.answers.parsing.tag_calls import tag_calls
from corepipe.answers.parsing.text_stream import NotACallError, Steps, TextCursor


def read_calls(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    """Reads calls up to their closing marker.  Raises NotACallError as soon as the text is no call."""
    yield from cursor.space()
    body = yield from _body(cursor, form)
    yield from _BODIES[body](cursor, calls, form)
    if form.closing:
        yield from _closing(cursor, form.closing)


def _body(cursor: TextCursor, form: CallFormat) -> Steps[Body]:
    """Returns the form of the next calls: a model that writes names first may write JSON nevertheless."""
    if not form.after_name:
        return form.body
    first = yield from cursor.peek()
    return Body.OBJECT if first in ("[", "{") else Body.NAMED


def _closing(cursor: TextCursor, closing: str) -> Steps[None]:
    """Skips the closing marker if it is there, also one that the end of the answer has cut."""
    before = cursor.at
    yield from cursor.space()
    if (yield from cursor.accept(closing)):
        return
    if cursor.ended and closing.startswith(cursor.rest):
        cursor.at = len(cursor.text)
    else:
        cursor.at = before


def _objects(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    listed = yield from cursor.accept("[")
    while True:
        yield from cursor.space()
        yield from _object(cursor, calls, form)
        before = cursor.at
        yield from cursor.space()
        char = yield from cursor.peek()
        if listed and char == "]":
            cursor.at += 1
            return
        if char and char in ",;":
            cursor.at += 1
        elif char != "{":
            cursor.at = before
            return


def _object(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    yield from cursor.expect("{")
    name: str | None = None
    held: str | None = None
    while (yield from _next_key(cursor)):
        key = _text((yield from cursor.string()))
        yield from cursor.space()
        yield from cursor.expect(":")
        yield from cursor.space()
        if key == form.name_key and name is None:
            name = _text((yield from cursor.string()))
        elif key in form.argument_keys and name is not None:
            yield from _arguments(cursor, calls, name)
            yield from _remaining(cursor)
            return
        elif key in form.argument_keys:
            held = _checked((yield from _value(cursor)))
        else:
            yield from _value(cursor)
    if name is None or (held is None and form.starts):
        raise NotACallError
    calls.begin(cursor, name)
    calls.arguments(held or "")
    calls.end(cursor)


def _arguments(cursor: TextCursor, calls: CallParts, name: str) -> Steps[None]:
    """Passes on an object as it comes; one that is written as a string, and null, when it is complete."""
    if (yield from cursor.peek()) == "{":
        calls.begin(cursor, name)
        yield from cursor.container(calls.arguments)
    else:
        text = _checked((yield from _value(cursor)))
        calls.begin(cursor, name)
        calls.arguments(text)
    calls.end(cursor)


def _remaining(cursor: TextCursor) -> Steps[None]:
    """Skips the rest of an object after the arguments; models forget even its closing brace."""
    try:
        while (yield from cursor.peek()) and (yield from _next_key(cursor)):
            yield from cursor.string()
            yield from cursor.space()
            yield from cursor.expect(":")
            yield from cursor.space()
            yield from _value(cursor)
    except NotACallError:
        cursor.at = 0
    cursor.cut()


def _next_key(cursor: TextCursor) -> Steps[bool]:
    """Tells whether an object has another key, which is the next to be read."""
    yield from cursor.space()
    if (yield from cursor.accept(",")):
        yield from cursor.space()
    return not (yield from cursor.accept("}"))


def _value(cursor: TextCursor) -> Steps[str]:
    """Reads a JSON value as it is written."""
    first = yield from cursor.peek()
    if first == '"':
        return (yield from cursor.string())
    found: list[str] = []
    if first and first in "{[":
        yield from cursor.container(found.append)
    else:
        while (char := (yield from cursor.peek())) and char not in ",}]" and not char.isspace():
            found.append(char)
            cursor.at += 1
    return "".join(found)


def _named(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    name = yield from cursor.name(form.after_name)
    yield from cursor.space()
    if (yield from cursor.peek()) != "{":
        raise NotACallError
    calls.begin(cursor, name)
    yield from cursor.container(calls.arguments)
    calls.end(cursor)


def _text(written: str) -> str:
    text = parsed(written)
    if not isinstance(text, str):
        raise NotACallError
    return text


def _checked(written: str) -> str:
    """Returns arguments as text of a JSON object; "" for none.  Raises NotACallError for anything else."""
    value = parsed(written)
    if isinstance(value, str):
        written, value = value, parsed(value)
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise NotACallError
    return written


_BODIES: Mapping[Body, Callable[[TextCursor, CallParts, CallFormat], Steps[None]]] = {
    Body.OBJECT: _objects,
    Body.NAMED: _named,
    Body.TAGS: tag_calls,
    Body.PYTHON: python_calls,
}
