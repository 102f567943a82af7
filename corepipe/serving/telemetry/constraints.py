"""Constrained requests: how many of which kind, how many were refused and why, what their grammars took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from corepipe.engine.messages import Stats
from corepipe.serving.telemetry.histogram import FIRST_TOKEN, GRAMMAR, MASK, Histogram
from corepipe.structured.constraints import KINDS, Kind

REASONS: Mapping[str, str] = {
    "invalid_value": "invalid",
    "unsupported_value": "unsupported",
    "request_too_complex": "too_complex",
    "rate_limit_exceeded": "busy",
}
"""By the code of the error."""


class ConstraintMetrics:
    """Counts requests, whatever their `n`; one that was refused is none of those of its kind."""

    def __init__(self) -> None:
        self._kinds = dict.fromkeys(KINDS, 0)
        self._refusals = dict.fromkeys(REASONS.values(), 0)
        self._seconds = Histogram(FIRST_TOKEN)
        self._compile_seconds = Histogram(GRAMMAR)
        self._mask_seconds = Histogram(MASK)

    def taken(self, kind: Kind) -> None:
        self._kinds[kind] += 1

    def refused(self, code: str) -> None:
        self._refusals[REASONS.get(code, "invalid")] += 1

    def took(self, seconds: float) -> None:
        """Of one that was not remembered from before."""
        self._seconds.observe(seconds)

    def observe(self, stats: Stats) -> None:
        """What the engine's half of it took."""
        for seconds in stats.compile_seconds:
            self._compile_seconds.observe(seconds)
        for seconds in stats.mask_seconds:
            self._mask_seconds.observe(seconds)

    def families(self, model: str) -> Iterator[Metric]:
        for name, what, label, counts in (
            ("constrained_requests", "Requests whose answers are held to a constraint.", "kind", self._kinds),
            ("constraint_refusals", "Requests refused for their constraint.", "reason", self._refusals),
        ):
            family = CounterMetricFamily(f"corepipe_{name}", what, labels=("model_name", label))
            for value, count in counts.items():
                family.add_metric((model, value), count)
            yield family
        for name, what, times in (
            (
                "check",
                "From a constraint to its checked grammar, where it was not remembered.",
                self._seconds,
            ),
            ("compile", "To compile a grammar, where the engine does not know it.", self._compile_seconds),
            ("mask", "To fill a token's mask, while its batch is computed.", self._mask_seconds),
        ):
            yield times.family(f"corepipe_grammar_{name}_seconds", what, {"model_name": model})
