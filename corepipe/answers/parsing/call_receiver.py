"""Who is told of calls while they are read, and how a reader commits itself to one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from corepipe.answers.parsing.text_stream import NotACallError, TextCursor


class CallReceiver(Protocol):
    """Is told of calls, one after the other."""

    def check(self, name: str) -> None:
        """Raises NotACallError for a tool that is not offered."""

    def start(self, name: str) -> None:
        """A call of a tool.  Raises NotACallError for one that is not offered."""

    def arguments(self, text: str) -> None:
        """The next of its arguments, as JSON text."""

    def end(self) -> None:
        """There is no more of it."""

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of the arguments of a tool that is offered."""
        ...


def begin(cursor: TextCursor, receiver: CallReceiver, name: str) -> None:
    """From here on what is read is a call.  Raises NotACallError where no such tool is offered."""
    receiver.start(name)
    cursor.certain = True
    cursor.cut()


def end(cursor: TextCursor, receiver: CallReceiver) -> None:
    """The call has been read."""
    receiver.end()
    cursor.cut()
    cursor.certain = False


def parsed(text: str) -> object:
    """A JSON value.  Raises NotACallError for what is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise NotACallError from None
    return value
