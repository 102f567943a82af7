"""`response_template` of a tokenizer_config.json, as transformers 5.23 has it, in terms of our formats.

It describes an answer's fields by what opens and closes them: literals, or regular expressions.  Those of a
stranger are never run: an expression is read as the literals and the named parts that it stands for, and what
has no such reading is refused.
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
    """The template says what our formats cannot; why."""


def from_response_template(spec: Mapping[str, Any]) -> tuple[CallFormat | None, ReasoningFormat | None]:
    """The formats of calls and of reasoning.  Raises UnreadableError."""
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
    """`<tool_call><function=f>`, the parameters' own tags, `</function></tool_call>`."""
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
    """What stands for the function in the transform of a call."""
    if isinstance(transform, dict):
        return transform.get("function", transform)
    return transform


def _key(placeholder: object) -> str:
    """The key of a call's object that a placeholder such as `{content.name}` or `{name}` takes."""
    found = re.fullmatch(r"\{(?:content\.)?(\w+)\}", placeholder) if isinstance(placeholder, str) else None
    return found[1] if found else ""


def _joined(pieces: list[tuple[str, str]]) -> str:
    """The literal that they are; white space that may be there is read anyway."""
    texts = [text for kind, text in pieces if kind == "text"]
    if len(texts) > 1:
        raise UnreadableError("white space may stand in the middle of a marker")
    return texts[0].strip() if texts else ""


def _pieces(field: Mapping[str, Any], which: str) -> list[tuple[str, str]]:
    """What opens or closes a field, as (kind, text): "text", "space", or "name" for a named part."""
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
