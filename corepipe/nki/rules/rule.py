"""A rule as data: what it says, who has it, and who publishes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

LEGACY, CURRENT = "legacy", "current"
BOTH = (LEGACY, CURRENT)

ARCHITECTURE, API, ERRORS = "architecture guide, ", "API reference, ", "API errors, err_"
"""Documents of the Neuron SDK for NKI, which most rules come from."""


class Kind(StrEnum):
    """The effect of breaking a rule."""

    ERROR = "error"  # the run ends
    FINDING = "finding"  # it is noted, and the run goes on


def all_cores(limit: int = 0) -> Mapping[str, int]:
    """Returns the same limit for every generation."""
    return {"v2": limit, "v3": limit, "v4": limit}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.  A message has what was seen, then what the rule says, then what to do.

    name: what errors and findings carry.  says: the rule, in which `{limit}` is its number.  saw: what breaks
    it, with fields in braces.  do: the advice.  limits: its number by generation, 0 where it has none; a
    generation that is not in it does not have the rule.
    """

    name: str
    says: str
    saw: str
    do: str
    source: str
    limits: Mapping[str, int] = field(default_factory=all_cores)
    dialects: tuple[str, ...] = BOTH
    kind: Kind = Kind.ERROR
