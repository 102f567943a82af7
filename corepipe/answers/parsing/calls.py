"""Readers of tool calls: from the text between an opening and a closing to calls, by their format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corepipe.answers.parsing.formats import Body, CallFormat
from corepipe.answers.parsing.python_calls import python_calls
from corepipe.answers.parsing.sink import Sink, begin, end, parsed
from corepipe.answers.parsing.tag_calls import tag_calls
from corepipe.answers.parsing.text_stream import NotACallError, Steps, Tape


def read_calls(tape: Tape, sink: Sink, form: CallFormat) -> Steps[None]:
    """Calls up to their closing.  Raises NotACallError for what is none, at the place where that is seen."""
    yield from tape.space()
    body = yield from _body(tape, form)
    yield from _BODIES[body](tape, sink, form)
    if form.closing:
        yield from _closing(tape, form.closing)


def _body(tape: Tape, form: CallFormat) -> Steps[Body]:
    """How the calls at hand are written: of a model that writes names first, perhaps as JSON nevertheless."""
    if not form.after_name:
        return form.body
    first = yield from tape.peek()
    return Body.OBJECT if first in ("[", "{") else Body.NAMED


def _closing(tape: Tape, closing: str) -> Steps[None]:
    """Goes past it, if it is there; of one that the answer's end has cut nothing is left, either."""
    before = tape.at
    yield from tape.space()
    if (yield from tape.accept(closing)):
        return
    if tape.ended and closing.startswith(tape.rest):
        tape.at = len(tape.text)
    else:
        tape.at = before


def _objects(tape: Tape, sink: Sink, form: CallFormat) -> Steps[None]:
    listed = yield from tape.accept("[")
    while True:
        yield from tape.space()
        yield from _object(tape, sink, form)
        before = tape.at
        yield from tape.space()
        char = yield from tape.peek()
        if listed and char == "]":
            tape.at += 1
            return
        if char and char in ",;":
            tape.at += 1
        elif char != "{":
            tape.at = before
            return


def _object(tape: Tape, sink: Sink, form: CallFormat) -> Steps[None]:
    yield from tape.expect("{")
    name: str | None = None
    held: str | None = None
    while (yield from _next_key(tape)):
        key = _text((yield from tape.string()))
        yield from tape.space()
        yield from tape.expect(":")
        yield from tape.space()
        if key == form.name_key and name is None:
            name = _text((yield from tape.string()))
        elif key in form.argument_keys and name is not None:
            yield from _arguments(tape, sink, name)
            yield from _remaining(tape)
            return
        elif key in form.argument_keys:
            held = _checked((yield from _value(tape)))
        else:
            yield from _value(tape)
    if name is None or (held is None and form.starts):
        raise NotACallError
    begin(tape, sink, name)
    sink.arguments(held or "")
    end(tape, sink)


def _arguments(tape: Tape, sink: Sink, name: str) -> Steps[None]:
    """An object as it comes; one that is written as a string, and null, when they are known."""
    if (yield from tape.peek()) == "{":
        begin(tape, sink, name)
        yield from tape.container(sink.arguments)
    else:
        text = _checked((yield from _value(tape)))
        begin(tape, sink, name)
        sink.arguments(text)
    end(tape, sink)


def _remaining(tape: Tape) -> Steps[None]:
    """What an object has after the arguments, if only its end, which models forget."""
    try:
        while (yield from tape.peek()) and (yield from _next_key(tape)):
            yield from tape.string()
            yield from tape.space()
            yield from tape.expect(":")
            yield from tape.space()
            yield from _value(tape)
    except NotACallError:
        tape.at = 0
    tape.cut()


def _next_key(tape: Tape) -> Steps[bool]:
    """Whether an object has another key; it is the next to be read."""
    yield from tape.space()
    if (yield from tape.accept(",")):
        yield from tape.space()
    return not (yield from tape.accept("}"))


def _value(tape: Tape) -> Steps[str]:
    """A JSON value as it is written."""
    first = yield from tape.peek()
    if first == '"':
        return (yield from tape.string())
    found: list[str] = []
    if first and first in "{[":
        yield from tape.container(found.append)
    else:
        while (char := (yield from tape.peek())) and char not in ",}]" and not char.isspace():
            found.append(char)
            tape.at += 1
    return "".join(found)


def _named(tape: Tape, sink: Sink, form: CallFormat) -> Steps[None]:
    name = yield from tape.name(form.after_name)
    yield from tape.space()
    if (yield from tape.peek()) != "{":
        raise NotACallError
    begin(tape, sink, name)
    yield from tape.container(sink.arguments)
    end(tape, sink)


def _text(written: str) -> str:
    text = parsed(written)
    if not isinstance(text, str):
        raise NotACallError
    return text


def _checked(written: str) -> str:
    """Arguments as the text of a JSON object; "" for none.  Raises NotACallError for anything else."""
    value = parsed(written)
    if isinstance(value, str):
        written, value = value, parsed(value)
    if value is None:
        return ""
    if not isinstance(value, dict):
        raise NotACallError
    return written


_BODIES: Mapping[Body, Callable[[Tape, Sink, CallFormat], Steps[None]]] = {
    Body.OBJECT: _objects,
    Body.NAMED: _named,
    Body.TAGS: tag_calls,
    Body.PYTHON: python_calls,
}
