"""Conversion of a tokenizer_config.json's `response_template`, as in transformers 5.23, to our formats.

It describes an answer's fields by their openings and closings: literals, or regular expressions.  Expressions
from untrusted files are never run: each is read as a sequence of literals and named parts, and one that is
more than that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from corepipe.answers.parsing.formats import Body, CallFormat, ReasoningFormat, Tags

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_PART = re.compile(
    r"(?P<space>\\s[*+])|\(\?P<(?P<name>\w+)>(?P<inside>(?:\\.|\[(?:\\.|[^\]])*\]|[^()\[\]\\])*)\)"
    r"|\\(?P<escaped>[^\w])|(?P<newline>\\n)|(?P<plain>[^\\()\[\]{}*+?|^$.])",
    re.DOTALL,
)


class UnreadableError(Exception):
    """Raised with the reason where a template describes what our formats cannot express."""


def from_response_template(spec: Mapping[str, Any]) -> tuple[CallFormat | None, ReasoningFormat | None]:
    """Returns the formats of calls and of reasoning.  Raises UnreadableError."""
    fields = spec.get("fields")
    if spec.get("version", 1) != 1 or not isinstance(fields, dict):
        raise UnreadableError("its version or its fields are unknown")
    calls = reasoning = None
    for name, field in fields.items():
        if not isinstance(field, dict):
            raise UnreadableError(f"{name} is no object")
        if name in _THOUGHTS:
            reasoning = _reasoning(field)
        elif name == "tool_calls":
            calls = _calls(field)
    return calls, reasoning


def _reasoning(field: Mapping[str, Any]) -> ReasoningFormat:
    opening, closing = _joined(_pieces(field, "open")), _joined(_pieces(field, "close"))
    if not opening or not closing:
        raise UnreadableError("reasoning has no opening or no closing")
    return ReasoningFormat("response_template", opening, closing)


def _calls(field: Mapping[str, Any]) -> CallFormat:
    opening, closing = _pieces(field, "open"), _pieces(field, "close")
    named = [at for at, (kind, _) in enumerate(opening) if kind == "name"]
    if any(kind == "name" for kind, _ in closing) or len(named) > 1:
        raise UnreadableError("tool_calls has named parts that are not the name of the call")
    content = field.get("content", "text")
    if content == "json" and not field.get("content_args"):
        return _json_calls(field, opening, _joined(closing), named)
    if content == "xml-inline" and named:
        return _tagged_calls(field, opening[: named[0]], opening[named[0] + 1 :], closing)
    raise UnreadableError(f"tool_calls of content {content!r} are not read")


def _json_calls(
    field: Mapping[str, Any], opening: list[tuple[str, str]], closing: str, named: list[int]
) -> CallFormat:
    function = _function(field.get("transform"))
    if named:
        before, after = _joined(opening[: named[0]]), _joined(opening[named[0] + 1 :])
        if not after:
            raise UnreadableError("nothing stands between the name of a call and its arguments")
        return CallFormat("response_template", Body.NAMED, before, closing, after_name=after)
    name = arguments = ""
    if function is None or function == "{content}":
        name, arguments = "name", "arguments"
    elif isinstance(function, dict):
        name, arguments = _key(function.get("name")), _key(function.get("arguments"))
    if not name or not arguments:
        raise UnreadableError("the transform of tool_calls is not known")
    return CallFormat(
        "response_template",
        opening=_joined(opening),
        closing=closing,
        listed=bool(field.get("transform_each")),
        separator=", " if field.get("transform_each") else None,
        name_key=name,
        argument_keys=(arguments,),
    )


def _tagged_calls(
    field: Mapping[str, Any],
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    closing: list[tuple[str, str]],
) -> CallFormat:
    """Makes the format of `<tool_call><function=f>`, tags of parameters, `</function></tool_call>`."""
    arguments = field.get("content_args")
    pattern = arguments.get("tag_pattern") if isinstance(arguments, dict) else None
    tag = list(_read(pattern)) if isinstance(pattern, str) else []
    kinds = [kind for kind, _ in tag if kind != "space"]
    outer, inner = [text for kind, text in before if kind == "text"], [t for k, t in closing if k == "text"]
    if kinds != ["text", "name", "text", "name", "text"] or len(outer) != 2 or len(inner) != 2:
        raise UnreadableError("the tags of tool_calls are not known")
    texts = [text for kind, text in tag if kind == "text"]
    if texts[1] != _joined(after):
        raise UnreadableError("the names of functions and parameters end differently")
    tags = Tags(outer[1], inner[0], texts[0], texts[2], texts[1])
    return CallFormat("response_template", Body.TAGS, outer[0], inner[1], lead="\n", tags=tags)


def _function(transform: object) -> object:
    """Returns the part of a call's transform that stands for the function."""
    if isinstance(transform, dict):
        return transform.get("function", transform)
    return transform


def _key(placeholder: object) -> str:
    """Returns the key of a call's object in a placeholder such as `{content.name}` or `{name}`."""
    found = re.fullmatch(r"\{(?:content\.)?(\w+)\}", placeholder) if isinstance(placeholder, str) else None
    return found[1] if found else ""


def _joined(pieces: list[tuple[str, str]]) -> str:
    """Returns the literal of some pieces; optional white space is read anyway."""
    texts = [text for kind, text in pieces if kind == "text"]
    if len(texts) > 1:
        raise UnreadableError("white space may stand in the middle of a marker")
    return texts[0].strip() if texts else ""


def _pieces(field: Mapping[str, Any], which: str) -> list[tuple[str, str]]:
    """Returns a field's opening or closing, as (kind, text): "text", "space", or "name" of a named part."""
    literal, pattern = field.get(which), field.get(f"{which}_pattern")
    if isinstance(literal, list) and len(literal) == 1:
        literal = literal[0]
    if isinstance(literal, str) and literal:
        return [("text", literal)]
    if isinstance(pattern, str):
        return list(_read(pattern))
    if literal is None and pattern is None:
        return []
    raise UnreadableError(f"what is to {which} a field is no single literal")


def _read(pattern: str) -> Iterator[tuple[str, str]]:
    text, at = "", 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            raise UnreadableError(f"the expression {pattern[:60]!r} is more than literals and names")
        at = found.end()
        if found["space"] is None and found["name"] is None:
            text += found["escaped"] or found["plain"] or "\n"
            continue
        if text:
            yield "text", text
            text = ""
        yield ("space", "") if found["space"] else ("name", found["name"])
    if text:
        yield "text", text
