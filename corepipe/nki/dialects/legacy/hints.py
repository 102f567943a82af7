"""Keywords of the legacy dialect that speak to the compiler alone: AWS's functions take any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corepipe.nki.core.recorder import current
from corepipe.nki.rules.breaking import found

HINTS = frozenset({"directives", "lazy_initialization", "name", "precise_schedule"})
"""Keywords that public kernels give, and that change neither values nor, here, times."""


def take_hints(function: str, given: Mapping[str, Any]) -> None:
    """Notes keywords of a call that are no known hint, and so have no effect."""
    for keyword in given:
        if keyword not in HINTS:
            found(current(), "ignored_keyword", op=function, operand=keyword)
