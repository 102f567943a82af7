"""Applies redaction rules to JSON values in place: replaces values at paths, and regex matches in texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corepipe.serving.api.cassettes.exchange import data_of, event_of

_STEP = re.compile(
    r"(?P<deep>\.\.)?(?:(?(deep)|\.)(?P<name>[^\s.\[\]'*$]+)|(?(deep)|\.)(?P<any>\*)"
    r"|\[(?:(?P<all>\*)|(?P<index>[0-9]{1,9})|'(?P<quoted>[^']+)')\])"
)

PathStep = tuple[bool, str | int | None]
"""A step of a path: whether it matches at any depth, and the name or index that it selects; None: all."""


def parse_path(text: str) -> tuple[PathStep, ...]:
    """Parses a path into steps.  Raises ValueError that says where it is wrong."""
    if not text.startswith("$"):
        raise ValueError(f"{text!r} is not a JSON path: it must begin with $, as $.messages[*].content")
    steps: list[PathStep] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f"{text!r} is not a JSON path from {text[at:]!r} on")
        name = found["name"] or found["quoted"]
        steps.append((found["deep"] is not None, int(found["index"]) if found["index"] else name))
        at = found.end()
    if not steps:
        raise ValueError("$ is the whole value: name the part to replace")
    return tuple(steps)


def places(value: Any, path: Sequence[PathStep]) -> list[tuple[Any, str | int]]:  # noqa: ANN401 -- any JSON
    """Finds the values that a path selects; returns their containers, and their name or index in each."""
    here = [([value], 0)]
    for deep, wanted in path:
        holders = [container[at] for container, at in here]
        if deep:
            holders = [inner for one in holders for inner in _all_in(one)]
        here = [(one, at) for one in holders for at in _selected(one, wanted)]
    return list({(id(container), at): (container, at) for container, at in here}.values())


def _selected(value: Any, wanted: str | int | None) -> Sequence[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        return list(value) if wanted is None else [wanted] if wanted in value else []
    if isinstance(value, list):
        indices = range(len(value))
        return (
            indices if wanted is None else [wanted] if isinstance(wanted, int) and wanted in indices else []
        )
    return []


def _all_in(value: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yields a value and all values within it."""
    yield value
    for inner in _values(value):
        yield from _all_in(inner)


def _values(value: Any) -> Sequence[Any]:  # noqa: ANN401
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


DEFAULT = "REDACTED"
TOKEN_DETAILS = ("logprobs", "prompt_logprobs", "token_ids", "prompt_token_ids")
"""Fields that spell texts token by token: they become null if something was replaced."""

_SHORTEST_ECHO = 4
"""The fewest characters of a replaced value of a request that is searched for in the answer, too."""

_EVENT_MARKS = ("index", "output_index", "content_index", "summary_index")
"""Members by which events of Messages and Responses name what they belong to."""

JsonPlace = tuple[Any, str | int]
"""A dict or a list, and a name or an index in it."""


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """A rule: the value at `path`, or matches of `regex` in texts there or anywhere, become `replacement`."""

    path: tuple[PathStep, ...] | None
    regex: re.Pattern[str] | None
    replacement: str = DEFAULT


class RedactablePart:
    """A body, or an event of a stream: `value` is its JSON, None if it is not JSON."""

    def __init__(self, raw: bytes, *, streamed: bool) -> None:
        self._raw = raw
        self._streamed = streamed
        self.value: Any = _json(data_of(raw) if streamed else raw)
        self._before = None if self.value is None else msgspec.json.encode(self.value)

    def redacted(self, rules: Sequence[RedactionRule]) -> bytes:
        """Returns the bytes of the part; the original bytes if nothing in it was replaced."""
        if self._before is None:
            return redacted_text(self._raw.decode(errors="replace"), rules).encode()
        now = msgspec.json.encode(self.value)
        if now == self._before:
            return self._raw
        return event_of(now) if self._streamed else now


def _json(data: bytes | None) -> Any:  # noqa: ANN401
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def redact(values: list[Any], rules: Iterable[RedactionRule]) -> bool:
    """Applies rules; returns whether they changed anything.  Texts at one place of all values are joined."""
    changed = False
    for rule in rules:
        if rule.regex is None:
            changed |= bool(sum(_replace_value(place, rule) for place in _places(values, rule)))
        else:
            changed |= _replace_texts(values, rule, rule.regex)
            changed |= rule.path is None and bool(sum(_rename(value, rule, rule.regex) for value in values))
    return changed


def redacted_text(text: str, rules: Iterable[RedactionRule]) -> str:
    """Returns a text that is not JSON, redacted by the rules for all texts."""
    for rule in rules:
        if rule.path is None and rule.regex is not None:
            text = _sub(rule, rule.regex, text)
    return text


def _sub(rule: RedactionRule, regex: re.Pattern[str], text: str) -> str:
    """Replaces matches; backslashes in the replacement are taken literally."""
    return regex.sub(lambda _: rule.replacement, text)


def blank(value: Any, *, refused: bool) -> None:  # noqa: ANN401
    """Sets fields to null that may contain a replaced text in another form; `refused`: blanks errors, too."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in TOKEN_DETAILS:
                value[name] = None
            elif refused and name == "error" and isinstance(inner, dict) and "message" in inner:
                inner["message"] = DEFAULT
            else:
                blank(inner, refused=refused)
    elif isinstance(value, list):
        for inner in value:
            blank(inner, refused=refused)


def echoes(body: bytes, rules: Iterable[RedactionRule]) -> Iterator[RedactionRule]:
    """Yields rules for the answer: they replace the texts that were replaced in the request."""
    value = _json(body)
    for rule in rules:
        if rule.regex is None:
            for container, at in _places([value], rule):
                for _, holder, inner in _texts(container, at, (), None):
                    if len(text := holder[inner]) >= _SHORTEST_ECHO and text != rule.replacement:
                        yield RedactionRule(None, re.compile(re.escape(text)), rule.replacement)


def _places(values: Sequence[Any], rule: RedactionRule) -> list[JsonPlace]:
    assert rule.path is not None
    return [place for value in values for place in places(value, rule.path)]


def _replace_value(place: JsonPlace, rule: RedactionRule) -> bool:
    container, at = place
    changed: bool = container[at] != rule.replacement
    container[at] = rule.replacement
    return changed


def _rename(value: Any, rule: RedactionRule, regex: re.Pattern[str]) -> bool:  # noqa: ANN401
    """Replaces matches in the names of objects; returns whether there were any."""
    changed = False
    if isinstance(value, dict):
        for name in [name for name in value if regex.search(name)]:
            value[_sub(rule, regex, name)] = value.pop(name)
            changed = True
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(sum(_rename(one, rule, regex) for one in inner)) or changed


def _replace_texts(values: list[Any], rule: RedactionRule, regex: re.Pattern[str]) -> bool:
    wanted = None if rule.path is None else {(id(c), at) for c, at in _places(values, rule)}
    by_identity: dict[tuple[Any, ...], list[JsonPlace]] = {}
    for at, value in enumerate(values):
        for identity, container, inner in _texts(values, at, _of_event(value), wanted):
            by_identity.setdefault(identity, []).append((container, inner))
    return bool(sum(_replace_in(leaves, rule, regex) for leaves in by_identity.values()))


def _of_event(value: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Returns the identity of a stream's block or item to which an event belongs."""
    return tuple(value.get(name) for name in _EVENT_MARKS) if isinstance(value, dict) else ()


def _texts(
    container: Any,  # noqa: ANN401
    at: str | int,
    identity: tuple[Any, ...],
    wanted: set[tuple[int, str | int]] | None,
) -> Iterator[tuple[tuple[Any, ...], Any, str | int]]:
    """Yields the texts at `wanted` places (None: all) and below: the identity of each, and its place.

    The identity of a list's element is its `index`, as of choices and calls in a stream.
    """
    if wanted is not None and (id(container), at) in wanted:
        wanted = None
    value = container[at]
    if isinstance(value, str):
        if wanted is None:
            yield identity, container, at
    elif isinstance(value, dict):
        for name in value:
            yield from _texts(value, name, (*identity, name), wanted)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            mark = one.get("index", number) if isinstance(one, dict) else number
            yield from _texts(value, number, (*identity, str(mark)), wanted)


def _replace_in(leaves: Sequence[JsonPlace], rule: RedactionRule, regex: re.Pattern[str]) -> bool:
    """Replaces matches that span several texts: the replacement goes where a match begins."""
    texts = [container[at] for container, at in leaves]
    joined = "".join(texts)
    spans = [found.span() for found in regex.finditer(joined) if found.end() > found.start()]
    start = 0
    if not spans:
        return False
    for (container, at), text in zip(leaves, texts, strict=True):
        end, parts, done = start + len(text), [], start
        for first, last in spans:
            if first < end and last > start:
                parts += [joined[done : max(first, done)], rule.replacement if first >= start else ""]
                done = min(last, end)
        container[at] = "".join([*parts, joined[done:end]])
        start = end
    return True
