"""Aggregates of a run, kept up to date while it goes on: HDR histograms of latencies, and counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from math import fsum, sqrt

from corepipe.bench.outcome import RequestOutcome
from corepipe.workload.slo import Slo

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Names of vLLM's benchmark: time to first token, time per output token, time between chunks, end to end."""

PERCENTS = (50.0, 90.0, 95.0, 99.0)
MICROSECONDS = 1e6
BITS = 11
"""Leading bits of a value that choose its bucket: values are exact within 0.05 %."""


class LatencyHistogram:
    """Seconds in the buckets of an HDR histogram: linear within each power of two of microseconds.

    A long run takes no more memory than a short one.  Mean and standard deviation are exact.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sum = self._squares = 0.0
        self.count = 0
        self.max = 0.0

    def add(self, seconds: float) -> None:
        middle = _bucket(round(seconds * MICROSECONDS))
        self._counts[middle] = self._counts.get(middle, 0) + 1
        self._sum += seconds
        self._squares += seconds * seconds
        self.count += 1
        self.max = max(self.max, seconds)

    @property
    def mean(self) -> float:
        return self._sum / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """The population standard deviation, as numpy's."""
        return sqrt(max(0.0, self._squares / self.count - self.mean**2)) if self.count else 0.0

    def at(self, percent: float) -> float:
        """Returns the smallest value that `percent` % of the values do not exceed; 0 where there is none."""
        rank, below = percent / 100 * self.count, 0
        for microseconds in sorted(self._counts):
            below += self._counts[microseconds]
            if below >= rank:
                return min(self.max, microseconds / MICROSECONDS)
        return 0.0

    def encoded(self) -> str:
        """Returns `microseconds:count` of each bucket, so that histograms of several runs can be added up."""
        return " ".join(f"{value}:{count}" for value, count in sorted(self._counts.items()))


def _bucket(value: int) -> int:
    """Returns the middle of the bucket that holds a value."""
    shift = max(0, value.bit_length() - BITS)
    return (value >> shift << shift) + (1 << shift >> 1)


class Recorder:
    """Records outcomes as they come.  keep_stamps: outcomes keep the time of every chunk, 8 bytes each."""

    def __init__(self, slo: Slo, *, keep_stamps: bool = False) -> None:
        self._slo = slo
        self._keep = keep_stamps
        self.latencies = {name: LatencyHistogram() for name in METRICS}
        self.device = {"ttft": LatencyHistogram(), "tpot": LatencyHistogram()}
        self.late = LatencyHistogram()
        self.outcomes: list[RequestOutcome] = []
        self.ends: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.details: dict[str, str] = {}
        self.good = 0
        self.input_tokens = self.cached_tokens = self.output_tokens = 0
        self.tokens_in_second: defaultdict[int, float] = defaultdict(float)

    def take(self, outcome: RequestOutcome) -> None:
        """Counts a request that has ended; latencies are those of completed requests alone."""
        self.outcomes.append(outcome)
        self.ends[outcome.end] += 1
        self.late.add(outcome.late)
        if outcome.end == "failed":
            self.errors[outcome.error] += 1
            self.details.setdefault(outcome.error, outcome.detail)
        if outcome.end == "completed":
            self._complete(outcome)
        if not self._keep:
            del outcome.stamps[:]

    def _complete(self, outcome: RequestOutcome) -> None:
        self.input_tokens += outcome.input_tokens
        self.cached_tokens += outcome.cached_tokens
        self.output_tokens += outcome.output_tokens
        for name, seconds in self._seconds(outcome):
            self.latencies[name].add(seconds)
        self.good += outcome.meets(self._slo)
        for name, milliseconds in zip(("ttft", "tpot"), outcome.device, strict=True):
            if milliseconds is not None:
                self.device[name].add(milliseconds / 1e3)
        share = outcome.output_tokens / max(1, len(outcome.stamps))
        for stamp in outcome.stamps:
            self.tokens_in_second[int(stamp)] += share

    def _seconds(self, outcome: RequestOutcome) -> Iterator[tuple[str, float]]:
        yield "e2el", outcome.e2e
        if outcome.generated:
            yield "ttft", outcome.ttft
        if outcome.tpot is not None:
            yield "tpot", outcome.tpot
        for gap in outcome.gaps:
            yield "itl", gap


def most_at_once(outcomes: list[RequestOutcome]) -> int:
    """Returns the largest number of concurrent requests."""
    changes = sorted([(o.sent, 1) for o in outcomes] + [(o.ended, -1) for o in outcomes])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def mean_at_once(outcomes: list[RequestOutcome], seconds: float) -> float:
    """Returns the mean number of concurrent requests."""
    return fsum(o.ended - o.sent for o in outcomes) / seconds if seconds > 0 else 0.0
