"""Objectives that a request must meet to count for goodput.  Users give their times with a unit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from corepipe.errors import UserError

_TIME = re.compile(r"(\d+(?:\.\d+)?|\.\d+)(ms|s)")
_PART = re.compile(r"(ttft|tpot|e2el?):(.*)")
_EXAMPLE = "'ttft:500ms tpot:50ms e2e:10s'"


def seconds_of(text: str) -> float | None:
    """Reads 500ms or 0.5s; returns None for any other text and for a time of 0."""
    found = _TIME.fullmatch(text.strip())
    seconds = float(found[1]) / (1e3 if found[2] == "ms" else 1) if found else 0.0
    return seconds if 0 < seconds < inf else None


@dataclass(frozen=True, slots=True)
class Slo:
    """The objectives of a request in seconds; None: no such objective."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Reads `ttft:500ms tpot:50ms e2e:10s`.  Raises UserError for other texts, and for times without a
        unit: vLLM's --goodput takes milliseconds, and others seconds."""
        limits: dict[str, float] = {}
        for part in text.replace(",", " ").split():
            found = _PART.fullmatch(part)
            if found is None:
                raise UserError(f"--slo {text!r}: {part} is no objective; give times, as {_EXAMPLE}", "slo")
            seconds = seconds_of(found[2])
            if seconds is None:
                raise UserError(f"--slo {text!r}: {part}: give a time with its unit, as {_EXAMPLE}", "slo")
            limits[found[1].removesuffix("l")] = seconds
        if not limits:
            raise UserError(f"--slo {text!r}: give times, as {_EXAMPLE}", "slo")
        return cls(**limits)

    def __str__(self) -> str:
        limits = (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
        return " ".join(f"{name}:{seconds * 1e3:g}ms" for name, seconds in limits if seconds is not None)

    def met(self, ttft: float, tpot: float, e2e: float) -> bool:
        """Tells whether a request with these times in seconds meets every objective."""
        limits = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        return all(limit is None or seconds <= limit for limit, seconds in limits)


NO_SLO = Slo()
"""No objectives: every answered request meets them."""
