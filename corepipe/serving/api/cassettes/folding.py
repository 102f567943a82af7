"""Long strings of a JSON text on lines of their own, as YAML folds them, and back.

A backslash at the end of a line continues a string on the next one, whose indentation is not of the string;
where the string itself goes on with a space, a backslash stands before it.  JSON has no line break within a
string, nor a backslash before one: nothing else can be meant, and what was folded comes back byte for byte.
"""

from __future__ import annotations

import re

WIDTH = 100
"""Characters of a string on one line, about."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNIT = r"(?:\\u[0-9a-fA-F]{4}|\\.|[^\\])"
_PARAGRAPH = re.compile(rf"(?:(?!\\n){_UNIT})*(?:\\n|$)")
_LINE = re.compile(rf"{_UNIT}{{1,{WIDTH - 1}}}(?: |$)|{_UNIT}{{1,{WIDTH}}}")
_FOLD = re.compile(rb"\\\n *(?:\\(?= ))?")


def fold(text: str) -> str:
    """`text` is JSON, indented or not, without a line break within a string."""

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
    """What `fold` was given."""
    return _FOLD.sub(b"", data) if b"\\\n" in data else data
