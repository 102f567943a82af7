"""Metrics of constrained requests: their number by kind, refusals by reason, and times of their grammars."""

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
"""The label of a refusal, by the code of its error."""


class ConstraintMetrics:
    """Counts requests, whatever their `n`; a refused one does not count for its kind."""

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
        """Counts the time of a check whose result was not remembered."""
        self._seconds.observe(seconds)

    def observe(self, stats: Stats) -> None:
        """Counts the times of the engine: compiling grammars and filling masks."""
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
                "Seconds from a constraint to its checked grammar, where it was not remembered.",
                self._seconds,
            ),
            ("compile", "Seconds to compile a grammar that the engine does not know.", self._compile_seconds),
            ("mask", "Seconds to fill a token's mask, while its batch is computed.", self._mask_seconds),
        ):
            yield times.family(f"corepipe_grammar_{name}_seconds", what, {"model_name": model})
