"""What targets say of what they find."""

from __future__ import annotations


class FoundError(AssertionError):
    """What a target found: our code did something that it says it never does."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise FoundError(what)
