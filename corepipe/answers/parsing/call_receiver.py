"""The receiver of calls while they are read, and the points at which a reader commits to a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from corepipe.answers.parsing.text_stream import NotACallError, TextCursor


class CallReceiver(Protocol):
    """Receives the parts of calls, one call after the other."""

    def check(self, name: str) -> None:
        """Raises NotACallError for a tool that is not offered."""

    def start(self, name: str) -> None:
        """Begins a call of a tool.  Raises NotACallError for one that is not offered."""

    def arguments(self, text: str) -> None:
        """Takes the next part of the arguments, as JSON text."""

    def end(self) -> None:
        """Ends the call."""

    def schema(self, name: str) -> Mapping[str, Any]:
        """Returns the JSON schema of the arguments of a tool that is offered."""
        ...


def begin(cursor: TextCursor, receiver: CallReceiver, name: str) -> None:
    """Commits the reader to a call.  Raises NotACallError where no such tool is offered."""
    receiver.start(name)
    cursor.certain = True
    cursor.cut()


def end(cursor: TextCursor, receiver: CallReceiver) -> None:
    """Ends a call that has been read."""
    receiver.end()
    cursor.cut()
    cursor.certain = False


def parsed(text: str) -> object:
    """Parses a JSON value.  Raises NotACallError for a text that is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise NotACallError from None
    return value
