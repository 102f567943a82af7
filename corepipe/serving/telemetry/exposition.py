"""The formats in which metrics are written, and the choice of the one that a scraper prefers.

All names are plain (letters, digits, `_` and `:`), so that none is ever escaped.  The client library's own
choice turns the colons of OpenMetrics' samples into underscores, and leaves those of their types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as write_text
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.openmetrics.exposition import generate_latest as write_openmetrics

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
VERSIONS = {TEXT: ("0.0.4", "1.0.0"), OPENMETRICS: ("1.0.0", "0.0.1")}
"""The versions of each format that are written; the first is for scrapers that name none."""

ESCAPING_SINCE = "1.0.0"
"""The version from which on, in either format, the answer says how names are escaped."""


@dataclass(frozen=True, slots=True)
class _AcceptedFormat:
    """A format that a scraper accepts: its media type, and the parameters beside it."""

    kind: str
    asked: Mapping[str, str]

    @property
    def weight(self) -> float:
        try:
            return float(self.asked.get("q", "1"))
        except ValueError:
            return 0.0

    @property
    def version(self) -> str:
        return self.asked.get("version", VERSIONS[self.kind][0])

    @property
    def content_type(self) -> str:
        found = f"{self.kind}; version={self.version}; charset=utf-8"
        if self.version != ESCAPING_SINCE:
            return found
        return f"{found}; escaping={ALLOWUTF8 if self.asked.get('escaping') == ALLOWUTF8 else UNDERSCORES}"


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Returns (body, content type) in the format that `accept` prefers; the text format where it has none."""
    known = [one for one in _accepted(accept) if one.version in VERSIONS[one.kind]]
    best = max(known, key=lambda one: one.weight, default=_AcceptedFormat(TEXT, {}))
    write: Callable[..., bytes] = write_openmetrics if best.kind == OPENMETRICS else write_text
    return write(registry, escaping=ALLOWUTF8), best.content_type


def _accepted(accept: str) -> Iterator[_AcceptedFormat]:
    for part in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        if kind in VERSIONS:
            pairs = (parameter.partition("=") for parameter in parameters)
            yield _AcceptedFormat(kind, {name.strip(): value.strip() for name, _, value in pairs})
