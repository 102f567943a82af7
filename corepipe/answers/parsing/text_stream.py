"""Text as it comes, for readers that are generators: they wait where it ends until there is more."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: it yields where it needs more text, and returns what it has read."""

MAX_HELD = 16_384
"""Characters that are held back until they turn out to be a call, or not."""

_UNQUOTED = re.compile(r'[\s\w+\-.:,{}\[\]"]')
"""What JSON has outside of its strings."""


class NotACallError(Exception):
    """What has been read is text, though it began as a call does."""


class TextCursor:
    """The text since the last `cut`, `at` where reading goes on; no more comes once it has `ended`.

    certain: what is being read is a call, so that its text need not be held back.  forgot: there was a call.
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
        """Forgets what has been read."""
        self.text, self.at, self.started_call = self.rest, 0, True

    def more(self) -> Steps[bool]:
        """Whether there is another character, once that is known.

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
        """Whether there is more text than now, once that is known."""
        size = len(self.text)
        while len(self.text) == size:
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, which stays; "" at the end."""
        return self.text[self.at] if (yield from self.more()) else ""

    def take(self) -> Steps[str]:
        """The next character; "" at the end."""
        char = yield from self.peek()
        self.at += len(char)
        return char

    def space(self) -> Steps[None]:
        """Goes past white space."""
        while (char := (yield from self.peek())) and char.isspace():
            self.at += 1

    def accept(self, literal: str) -> Steps[bool]:
        """Goes past these characters, if they are next; else nothing is read."""
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
        """What stands before `end`, which is read, too: one line."""
        found = ""
        while not (yield from self.accept(end)):
            char = yield from self.take()
            if not char.strip():
                raise NotACallError
            found += char
        return found

    def string(self) -> Steps[str]:
        """A JSON string as it is written, from its first quote to its last."""
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
        """A JSON object or array, told as it comes, up to its end or to what no JSON has."""
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
        elif self.at > MAX_HELD:  # however it came, as many characters are given up
            self.at = MAX_HELD + 1
            raise NotACallError
        told(text)
