"""The outcome of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from corepipe.workload.slo import Slo

End = Literal["completed", "failed", "cancelled", "unfinished"]
"""The end of a request.  cancelled: the client disconnected, as --cancel says.  unfinished: the run ended
before the answer."""


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of one request.  Times are seconds of `perf_counter`.

    intended: when it was due; latencies count from there.  sent: when the load generator sent it. first,
    last: times of the first and last token; None: there was none.  stamps: times of every chunk with tokens.
    input_tokens, cached_tokens, output_tokens: as in the server's usage (or by the tokenizer that was named);
    0 where not known.  error: the kind of failure, `detail` its message.  device: emulated milliseconds to
    the first token and per token, as a corepipe server predicts them.  generated: False where the answer came
    whole, at the time of `first` and `last`.
    """

    session: int
    turn: int
    asked_input: int
    asked_output: int
    intended: float
    sent: float
    end: End = "unfinished"
    first: float | None = None
    last: float | None = None
    ended: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stamps: array[float] = field(default_factory=lambda: array("d"))
    error: str = ""
    detail: str = ""
    request_id: str = ""
    text: str = ""
    device: tuple[float | None, float | None] = (None, None)
    generated: bool = True

    @property
    def ttft(self) -> float:
        """Seconds to the first token, from the intended time."""
        assert self.first is not None
        return self.first - self.intended

    @property
    def e2e(self) -> float:
        """Seconds to the last token, from the intended time."""
        assert self.last is not None
        return self.last - self.intended

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None where no second token came later."""
        seconds = self.e2e - self.ttft
        return seconds / (self.output_tokens - 1) if self.output_tokens > 1 and seconds > 0 else None

    def meets(self, slo: Slo) -> bool:
        """Tells whether a completed request meets every objective; a missing time per token meets its own."""
        return slo.met(self.ttft, self.tpot or 0.0, self.e2e)

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks with tokens."""
        return [after - before for before, after in pairwise(self.stamps)]

    @property
    def late(self) -> float:
        """Seconds by which the load generator sent the request late, which is not the server's fault."""
        return max(0.0, self.sent - self.intended)
