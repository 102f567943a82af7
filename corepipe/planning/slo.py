"""What a request must meet to count for goodput."""

from __future__ import annotations

import re
from dataclasses import dataclass

from corepipe.errors import UserError

_UNITS = {"": 1e-3, "ms": 1e-3, "s": 1.0}
_PART = re.compile(r"(ttft|tpot|e2el?):([0-9.]+)(ms|s|)")


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet, in seconds; None: nothing is asked."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Reads `ttft:500ms tpot:50ms e2e:10s`; milliseconds without a unit, as in vLLM's --goodput.

        Raises UserError.
        """
        limits: dict[str, float] = {}
        for part in text.replace(",", " ").split():
            found = _PART.fullmatch(part)
            name = found[1].removesuffix("l") if found else part
            limits[name] = _seconds(found) if found else 0.0
        if not limits or min(limits.values()) <= 0:
            raise UserError(f"--slo {text!r}: give times, as 'ttft:500ms tpot:50ms e2e:10s'", "slo")
        return cls(**limits)

    def met(self, ttft: float, tpot: float, e2e: float) -> bool:
        """Whether a request of these seconds meets every objective."""
        limits = ((self.ttft, ttft), (self.tpot, tpot), (self.e2e, e2e))
        return all(limit is None or seconds <= limit for limit, seconds in limits)


def _seconds(found: re.Match[str]) -> float:
    try:
        return float(found[2]) * _UNITS[found[3]]
    except ValueError:
        return 0.0


NO_SLO = Slo()
"""Whatever is answered is good."""
