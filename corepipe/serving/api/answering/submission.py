"""Steps that all requests to a model share: the key's quota, the connection to the client, and the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from starlette.types import Receive

from corepipe.serving.api.answering.output_streams import while_connected
from corepipe.serving.api.bodies.protocol import ModelRequest
from corepipe.serving.api.http.tenants import Quota
from corepipe.serving.supervision.client import OutputStream
from corepipe.serving.telemetry.requests import FinishedSequence

TRACE = "corepipe.trace"
"""The key of a traced request's AnswerObserver in its ASGI scope."""


class AnswerObserver(Protocol):
    """An observer that learns how an answer ended, such as `tracing.RequestSpan`."""

    def answered(
        self, operation: str, request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]
    ) -> None: ...


def _no_tokens() -> int:
    """Returns 0, for requests that generate nothing."""
    return 0


@contextmanager
def charged(
    quota: Quota | None, sequences: int, prompt_tokens: int, generated: Callable[[], int] = _no_tokens
) -> Iterator[None]:
    """Charges a key's quota for `sequences` requests in flight: prompt tokens now, generated ones at the end.

    Raises ApiError (429) if the quota is used up.
    """
    if quota is None:
        yield
        return
    with quota.holding(sequences - 1):  # RequestGuard holds one
        quota.charge(prompt_tokens)
        try:
            yield
        finally:
            quota.charge(generated())


@asynccontextmanager
async def followed(
    streams: Sequence[OutputStream], receive: Receive, report: Callable[[], None]
) -> AsyncIterator[None]:
    """Runs the body of `async with` while the client is connected; then closes all streams, also those added
    meanwhile, and calls `report`."""
    try:
        async with while_connected(receive):
            yield
    finally:
        for stream in streams:
            await stream.aclose()
        report()
