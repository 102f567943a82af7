"""A small subset of JSONPath: `$.user`, `$.messages[*].content`, `$..api_key`, `$.metadata['a key']`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

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
