"""Errors that are the user's to mend."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Something the user gave is wrong; the message is one line that says what and what to do.

    Commands print it and exit with 2; the server answers 400 with `param`, the field at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def shown(value: object, most: int = 80) -> str:
    """What a file or a client says, as one line of a message may quote it: cut, and nothing but printable."""
    text = str(value) if isinstance(value, str | Path) else repr(value)
    cut = text if len(text) <= most else f"{text[:most]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
