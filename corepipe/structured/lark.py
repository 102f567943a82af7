"""Pieces of grammars in Lark's syntax, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping

ANY_TEXT = "/(?s:.*)/"


def quoted(text: str) -> str:
    """As Lark's syntax has a text."""
    return json.dumps(text)


def marker(text: str, tokens: Mapping[str, int]) -> str:
    """A marker: the token that it is, or its characters; nothing for none."""
    if not text:
        return ""
    return f"<[{tokens[text]}]>" if text in tokens else quoted(text)
