"""Errors that are the user's to mend."""

from __future__ import annotations


class UserError(Exception):
    """Something the user gave is wrong; the message is one line that says what and what to do.

    Commands print it and exit with 2; the server answers 400 with `param`, the field at fault.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
