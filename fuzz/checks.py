"""The error by which targets report a finding."""

from __future__ import annotations


class FoundError(AssertionError):
    """A finding of a target: our code did something that it promises never to do."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise FoundError(what)
