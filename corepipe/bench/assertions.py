"""Conditions on a result, such as `p99_ttft_ms<500`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from corepipe.errors import UserError

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|==|<|>)\s*(-?[0-9.]+(?:e-?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Assertion:
    """A comparison of `key`, a key of the result's JSON, with a number."""

    key: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Assertion:
        """Reads KEY<NUMBER or another comparison.  Raises UserError for anything else."""
        found = _FORM.fullmatch(text)
        try:
            if found:
                return cls(found[1], found[2], float(found[3]))
        except ValueError:
            pass
        raise UserError(
            f"--assert {text!r}: give KEY<NUMBER (or <=, >, >=, ==), as p99_ttft_ms<500", "assert"
        )

    def check(self, known: Sequence[str]) -> None:
        """Raises UserError where no result has such a key; called before the run, not after it."""
        if self.key not in known:
            near = get_close_matches(self.key, known, 1) or ["p99_ttft_ms"]
            raise UserError(
                f"--assert {self}: the result has no {self.key}; did you mean {near[0]}?", "assert"
            )

    def holds(self, document: Mapping[str, object]) -> bool:
        """Tells whether the condition is met; a missing value (null) meets no condition."""
        value = document.get(self.key)
        return isinstance(value, int | float) and _COMPARE[self.sign](float(value), self.bound)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"


def unmet(assertions: list[Assertion], document: Mapping[str, object]) -> Iterator[str]:
    """Yields a line for each condition that is not met."""
    for assertion in assertions:
        if not assertion.holds(document):
            yield f"not met: {assertion}, it is {_shown(document.get(assertion.key))}"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
