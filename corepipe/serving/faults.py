"""Injected faults, for testing the retries of clients: their kinds, and which requests they hit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random

STATUSES = (408, 409, 429, 500, 502, 503, 504)
"""Status codes that a client should retry; the server itself uses 429 and 503 in the same way."""

KINDS = {
    **{str(status): f"answers {status} and does nothing else" for status in STATUSES},
    "slow": "waits before it begins to answer",
    "stall": "stops in the middle of the answer for a while, then continues",
    "cut-stream": "closes the connection in the middle of the answer",
    "drop-connection": "closes the connection without an answer",
    "garbled": "answers with JSON that does not parse",
}
"""The kinds of faults, and what the server does to the request."""

SECONDS = {"slow": 2.0, "stall": 10.0}
"""The default seconds of the kinds that take time."""

_ONE = re.compile(r"([\w-]+):(\d+(?:\.\d*)?)%(?:@(\d+(?:\.\d*)?)(ms|s))?")


@dataclass(frozen=True, slots=True)
class RequestFault:
    """A kind of fault that hits `share` of the requests, 0 to 1; `seconds` is 0 if it takes no time."""

    kind: str
    share: float
    seconds: float = 0.0

    def __str__(self) -> str:
        took = f"@{self.seconds:g}s" if self.seconds else ""
        return f"{self.kind}:{self.share * 100:g}%{took}"


def parse_faults(text: str) -> tuple[RequestFault, ...]:
    """Reads `KIND:SHARE%[@TIME],...`, such as `429:5%,slow:2%@500ms`.  Raises ValueError."""
    faults = tuple(_fault(part.strip()) for part in text.split(",") if part.strip())
    kinds = [fault.kind for fault in faults]
    if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        raise ValueError(f"{twice} is listed twice; list each fault once")
    if sum(fault.share for fault in faults) > 1 + 1e-9:
        raise ValueError("the shares add up to more than 100 %; lower them")
    return faults


def _fault(text: str) -> RequestFault:
    found = _ONE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a fault; write KIND:SHARE%, such as 429:5% or slow:2%@500ms")
    kind, percent, time, unit = found.groups()
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KINDS)}"
        raise ValueError(f"no fault is called {kind!r}; {hint}")
    if time is not None and kind not in SECONDS:
        raise ValueError(f"{kind} takes no time; only {' and '.join(SECONDS)} do")
    seconds = SECONDS.get(kind, 0.0) if time is None else float(time) / (1000 if unit == "ms" else 1)
    if float(percent) > 100:
        raise ValueError(f"{text}: a share is at most 100 %")
    return RequestFault(kind, float(percent) / 100, seconds)


class FaultSequence:
    """Draws a fault or None for each request; the n-th draw depends on the seed and on n alone."""

    def __init__(self, faults: tuple[RequestFault, ...], seed: int) -> None:
        self._faults = faults
        self._random = Random(seed)  # noqa: S311 -- repeatable, no secret

    def __iter__(self) -> Iterator[RequestFault | None]:
        return self

    def __next__(self) -> RequestFault | None:
        """Returns the fault of the next request, or None."""
        at = self._random.random()
        for fault in self._faults:
            if at < fault.share:
                return fault
            at -= fault.share
        return None
