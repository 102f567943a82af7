"""Who is told of calls while they are read, and how a reader commits itself to one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from corepipe.answers.parsing.text_stream import NotACallError, Tape


class Sink(Protocol):
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


def begin(tape: Tape, sink: Sink, name: str) -> None:
    """From here on what is read is a call.  Raises NotACallError where no such tool is offered."""
    sink.start(name)
    tape.certain = True
    tape.cut()


def end(tape: Tape, sink: Sink) -> None:
    """The call has been read."""
    sink.end()
    tape.cut()
    tape.certain = False


def parsed(text: str) -> object:
    """A JSON value.  Raises NotACallError for what is none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        raise NotACallError from None
    return value
