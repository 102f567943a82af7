"""Times of an engine for grammars, from its server's metrics."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tests.servers import Served

Buckets = Mapping[float, float]
"""A histogram: bound -> number of values that are not greater."""


@dataclass(frozen=True)
class EngineTimes:
    """Histograms of the times to compile grammars and to fill masks."""

    compiled: Buckets
    masks: Buckets

    @classmethod
    def of(cls, server: Served) -> EngineTimes:
        text = server.get("/metrics").text
        return cls(
            _buckets(text, "corepipe_grammar_compile_seconds"),
            _buckets(text, "corepipe_grammar_mask_seconds"),
        )

    def __str__(self) -> str:
        compiled, masks = self.compiled[math.inf], self.masks[math.inf]
        return (
            f"{compiled:.0f} grammars compiled: p50 {1e3 * quantile(self.compiled, 0.5):.2f} ms, "
            f"p99 {1e3 * quantile(self.compiled, 0.99):.1f} ms; {masks:.0f} masks: "
            f"p50 {1e6 * quantile(self.masks, 0.5):.1f} us, p99 {1e6 * quantile(self.masks, 0.99):.0f} us"
        )


def _buckets(text: str, name: str) -> Buckets:
    found: Counter[float] = Counter()
    for bound, count in re.findall(rf'^{name}_bucket{{.*le="([^"]+)".*}} (\S+)$', text, re.MULTILINE):
        found[float(bound)] += float(count)
    return found


def quantile(buckets: Buckets, share: float) -> float:
    """Returns a quantile as PromQL's histogram_quantile does: on a line through its bucket."""
    wanted = share * buckets[math.inf]
    low = below = 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted and count > below:
            return low if bound == math.inf else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return math.nan
