"""The calls that a reader finds, as parts of the answer, and where the reader commits to a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corepipe.answers.parsing.formats import AnswerFormat
from corepipe.answers.parsing.text_stream import NotACallError, TextCursor
from corepipe.answers.parts import CallArguments, CallStart, Said


class CallParts:
    """Makes parts of calls, one call after the other; `count`: the calls so far."""

    def __init__(self, choice: int, reading: AnswerFormat, parts: list[Said]) -> None:
        self.count = 0
        self._choice = choice
        self._reading = reading
        self._parts = parts
        self._empty = True

    def check(self, name: str) -> None:
        """Raises NotACallError for a tool that is not offered."""
        if name not in self._reading.tools:
            raise NotACallError

    def begin(self, cursor: TextCursor, name: str) -> None:
        """Begins a call, to which the reader commits.  Raises NotACallError where no such call may follow."""
        self.check(name)
        if self._reading.single and self.count:
            raise NotACallError
        self._parts.append(CallStart(self._choice, self.count, self._reading.new_id(), name))
        self.count += 1
        self._empty = True
        cursor.certain = True
        cursor.cut()

    def arguments(self, text: str) -> None:
        """Takes the next part of the arguments, as JSON text."""
        if text:
            self._empty = False
            self._parts.append(CallArguments(self._choice, self.count - 1, text))

    def end(self, cursor: TextCursor) -> None:
        """Ends a call that has been read."""
        if self._empty:
            self.arguments("{}")
        cursor.cut()
        cursor.certain = False

    def schema(self, name: str) -> Mapping[str, Any]:
        """Returns the JSON schema of the arguments of a tool that is offered."""
        return self._reading.tools[name]


def parsed(text: str) -> object:
    """Parses a JSON value.  Raises NotACallError for a text that is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise NotACallError from None
    return value
