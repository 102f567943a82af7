"""The reader of calls in Python's syntax, `[f(a=1), g()]` or lines of a program, with JSON as its result."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator

from corepipe.answers.parsing.call_parts import CallParts
from corepipe.answers.parsing.formats import CallFormat
from corepipe.answers.parsing.text_stream import NotACallError, Steps, TextCursor

_CONSTANTS = {"true": True, "false": False, "null": None}
"""JSON's constants, which models write here, too."""
_NAME = re.compile(r"[\w.-]+")


def python_calls(cursor: TextCursor, calls: CallParts, form: CallFormat) -> Steps[None]:
    """Reads all calls at once: only at their end it is certain that they are calls."""
    listed = form.listed
    if listed and (yield from cursor.peek()) != "[":
        raise NotACallError
    start = cursor.at
    yield from (_brackets(cursor) if listed else _program(cursor, form.closing))
    source = cursor.text[start : cursor.at].strip()
    found = list(_calls(source[1:-1] if listed else source, "," if listed else ";\n"))
    if not found:
        raise NotACallError
    for name, _ in found:
        calls.check(name)
    for name, arguments in found:
        calls.begin(cursor, name)
        calls.arguments(arguments)
        calls.end(cursor)


def _brackets(cursor: TextCursor) -> Steps[None]:
    """Reads up to the bracket that closes the next one."""
    depth, quote = 0, ""
    while True:
        char = yield from cursor.take()
        if not char:
            raise NotACallError
        if char == "\\" and quote:
            yield from cursor.take()
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return


def _program(cursor: TextCursor, closing: str) -> Steps[None]:
    """Reads up to `closing`, which is not read, or the end."""
    while (yield from cursor.peek()):
        before = cursor.at
        if (yield from cursor.accept(closing)):
            cursor.at = before
            return
        cursor.at += 1


def _calls(source: str, separators: str) -> Iterator[tuple[str, str]]:
    """Yields names and arguments of the calls in a source.  Raises NotACallError for anything else."""
    cursor = _cursor(source)
    while True:
        _run(cursor.space())
        if cursor.at == len(source):
            return
        head = _NAME.match(source, cursor.at)
        if head is None or source[head.end() : head.end() + 1] != "(":
            raise NotACallError
        cursor.at = head.end()
        _run(_brackets(cursor))
        yield head[0], _arguments(source[head.end() : cursor.at])
        rest = cursor.rest.lstrip(" \t\r")
        if rest and rest[0] not in separators:
            raise NotACallError
        cursor.at = len(source) - len(rest[1:])


def _cursor(source: str) -> TextCursor:
    cursor = TextCursor()
    cursor.text, cursor.ended, cursor.certain = source, True, True
    return cursor


def _run(steps: Steps[None]) -> None:
    """Runs a reader that must not wait.  Raises NotACallError if it does."""
    for _ in steps:
        raise NotACallError


def _arguments(written: str) -> str:
    """Converts a call's parentheses and their contents to a JSON object."""
    source = f"f{written}"
    try:
        with warnings.catch_warnings(action="ignore"):  # about escapes that Python does not know
            call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise NotACallError
        values = {word.arg: _value(source, word.value) for word in call.keywords}
        if None in values:
            raise NotACallError
        return _dumped(values)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise NotACallError from None


def _dumped(values: object) -> str:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False)
    return text if _is_unicode(text) else json.dumps(values, allow_nan=False)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _value(source: str, node: ast.expr) -> object:
    """Returns a value as JSON reads it, else as Python does.  Raises ValueError for what neither reads."""
    try:
        value: object = json.loads(ast.get_source_segment(source, node) or "")
    except ValueError:
        return _literal(node)
    return value


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _literal(one) for key, one in zip(node.keys, node.values, strict=True)}
    value: object = ast.literal_eval(node)
    return value


def _key(node: ast.expr | None) -> str:
    key = None if node is None else ast.literal_eval(node)
    if not isinstance(key, str):
        raise ValueError("a key that is not text")
    return key
