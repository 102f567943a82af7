"""A cursor in text that still comes, for readers that are generators: they wait at its end for more."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: it yields where it needs more text, and returns its result."""

MAX_HELD = 16_384
"""The most characters that are held back until they prove to be a call or not."""

_UNQUOTED = re.compile(r'[\s\w+\-.:,{}\[\]"]')
"""Characters of JSON outside of its strings."""


class NotACallError(Exception):
    """Raised when text that began like a call is none."""


class TextCursor:
    """The text since the last `cut`; reading goes on at index `at`; no more text comes once it has `ended`.

    certain: the reader has committed to a call, so that its text need not be held back.  started_call: some
    text was cut, since there was a call.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.certain = False
        self.started_call = False

    @property
    def read(self) -> str:
        return self.text[: self.at]

    @property
    def rest(self) -> str:
        return self.text[self.at :]

    def cut(self) -> None:
        """Drops the text that has been read."""
        self.text, self.at, self.started_call = self.rest, 0, True

    def more(self) -> Steps[bool]:
        """Waits until it is known whether there is another character, and returns that.

        Raises NotACallError where too much is held back.
        """
        if self.at > MAX_HELD and not self.certain:
            raise NotACallError
        while self.at == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def longer(self) -> Steps[bool]:
        """Waits until it is known whether there is more text than now, and returns that."""
        size = len(self.text)
        while len(self.text) == size:
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """Returns the next character without reading it; "" at the end."""
        return self.text[self.at] if (yield from self.more()) else ""

    def take(self) -> Steps[str]:
        """Reads the next character; "" at the end."""
        char = yield from self.peek()
        self.at += len(char)
        return char

    def space(self) -> Steps[None]:
        """Skips white space."""
        while (char := (yield from self.peek())) and char.isspace():
            self.at += 1

    def accept(self, literal: str) -> Steps[bool]:
        """Reads these characters if they are next, else nothing.  Returns whether it did."""
        before = self.at
        for char in literal:
            if (yield from self.take()) != char:
                self.at = before
                return False
        return True

    def expect(self, literal: str) -> Steps[None]:
        if not (yield from self.accept(literal)):
            raise NotACallError

    def name(self, end: str) -> Steps[str]:
        """Reads one line up to and including `end`, and returns the text before that."""
        found = ""
        while not (yield from self.accept(end)):
            char = yield from self.take()
            if not char.strip():
                raise NotACallError
            found += char
        return found

    def string(self) -> Steps[str]:
        """Reads a JSON string as it is written, from its first quote to its last."""
        start, escaped = self.at, False
        yield from self.expect('"')
        while True:
            char = yield from self.take()
            if not char:
                raise NotACallError
            if char == '"' and not escaped:
                return self.text[start : self.at]
            escaped = char == "\\" and not escaped

    def container(self, told: Callable[[str], None]) -> Steps[None]:
        """Passes on a JSON object or array as it comes, up to its end or to a character that JSON has not."""
        depth, quoted, escaped = 0, False, False
        while (yield from self.more()):
            text = self.rest
            for at, char in enumerate(text):
                if quoted:
                    quoted, escaped = escaped or char != '"', char == "\\" and not escaped
                    continue
                if not _UNQUOTED.match(char):
                    self._tell(text[:at], told)
                    return
                quoted = char == '"'
                depth += (char in "{[") - (char in "}]")
                if depth == 0:
                    self._tell(text[: at + 1], told)
                    return
            self._tell(text, told)

    def _tell(self, text: str, told: Callable[[str], None]) -> None:
        self.at += len(text)
        if self.certain:
            self.cut()
        elif self.at > MAX_HELD:  # the same number of characters in whatever pieces the text came
            self.at = MAX_HELD + 1
            raise NotACallError
        told(text)
