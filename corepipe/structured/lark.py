"""Pieces of grammars in Lark's syntax, as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping

ANY_TEXT = "/(?s:.*)/"


def quoted(text: str) -> str:
    """Quotes a text for Lark's syntax."""
    return json.dumps(text)


def marker(text: str, tokens: Mapping[str, int]) -> str:
    """Writes a marker as its token or its characters; "" for an empty one."""
    if not text:
        return ""
    return f"<[{tokens[text]}]>" if text in tokens else quoted(text)
