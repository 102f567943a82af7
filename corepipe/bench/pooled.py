"""Answers that come whole: embeddings, classes or ranks that a model computes for texts."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from corepipe.bench.stream import NO_WORDS, DevicePrediction, TokenCounts, error_message


class Results(msgspec.Struct):
    """An answer of /v1/embeddings and /classify (`data`) or /v1/rerank (`results`), values not parsed."""

    data: list[msgspec.Raw] | None = None
    results: list[msgspec.Raw] | None = None
    usage: TokenCounts | None = None
    error: Any = None


class PooledAnswer:
    """Reads one answer, with the interface of `stream.StreamedAnswer`; its time is that of its last byte.

    wanted: the number of results that the answer must have.
    """

    enough = False
    text = ""
    device: DevicePrediction | None = None

    def __init__(self, decoder: msgspec.json.Decoder[Results], wanted: int) -> None:
        self.status = 0
        self.stamps = array("d")
        self.usage: TokenCounts | None = None
        self._decoder = decoder
        self._wanted = wanted
        self._body = bytearray()
        self._now = 0.0
        self._failure: tuple[str, str] | None = None

    @property
    def first(self) -> float | None:
        return self.stamps[0] if self.stamps else None

    @property
    def last(self) -> float:
        return self.stamps[0] if self.stamps else 0.0

    def start(self, status: int) -> None:
        self.status = status

    def read(self, data: bytes, now: float) -> None:
        self._body += data
        self._now = now

    def reported_failure(self) -> tuple[str, str] | None:
        """Returns the kind and the message of a failure that the server reported; None: it reported none."""
        if self.status not in {0, 200}:
            return str(self.status), error_message(bytes(self._body))
        return self._failure

    def missing(self) -> tuple[str, str] | None:
        """Returns the kind and the message of what a completely read answer lacks; None: nothing."""
        return None if self.stamps else ("empty", "an answer without a result")

    def end(self, now: float) -> None:  # noqa: ARG002
        """Parses the whole answer."""
        if self.status != 200:
            return
        try:
            found = self._decoder.decode(self._body)
        except (msgspec.DecodeError, RecursionError) as error:
            self._failure = "protocol", f"an answer that is not of this API: {error}"
            return
        results = found.data if found.results is None else found.results
        if found.error:
            self._failure = "error", error_message(bytes(self._body)) or NO_WORDS
        elif results is not None and len(results) != self._wanted:
            self._failure = "cut", f"{len(results)} results of {self._wanted}"
        elif results is not None:
            self.stamps.append(self._now)
            self.usage = found.usage
