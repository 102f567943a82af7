"""Folds long strings of a JSON text into several lines, as YAML does, and unfolds them.

A backslash at the end of a line continues a string on the next line, whose indentation does not belong to the
string; if the string itself goes on with a space, a backslash precedes it.  JSON has no line break within a
string, nor a backslash before one, so folding is unambiguous, and unfolding gives back the same bytes.
"""

from __future__ import annotations

import re

WIDTH = 100
"""Approximate number of a string's characters on one line."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNIT = r"(?:\\u[0-9a-fA-F]{4}|\\.|[^\\])"
_PARAGRAPH = re.compile(rf"(?:(?!\\n){_UNIT})*(?:\\n|$)")
_LINE = re.compile(rf"{_UNIT}{{1,{WIDTH - 1}}}(?: |$)|{_UNIT}{{1,{WIDTH}}}")
_FOLD = re.compile(rb"\\\n *(?:\\(?= ))?")


def fold(text: str) -> str:
    """Folds the strings of `text`: JSON, indented or not, without a line break within a string."""

    def folded(found: re.Match[str]) -> str:
        string = found[0]
        if len(string) <= WIDTH:
            return string
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        margin = "\\\n" + " " * (len(line) - len(line.lstrip(" ")) + 2)
        return '"' + margin.join(_parts(string[1:-1])) + '"'

    return _STRING.sub(folded, text)


def _parts(inside: str) -> list[str]:
    lines = [line for paragraph in _PARAGRAPH.findall(inside) for line in _LINE.findall(paragraph)]
    return [lines[0], *("\\" + line if line.startswith(" ") else line for line in lines[1:])]


def unfold(data: bytes) -> bytes:
    """Returns the bytes that were given to `fold`."""
    return _FOLD.sub(b"", data) if b"\\\n" in data else data
