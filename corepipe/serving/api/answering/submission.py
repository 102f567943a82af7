"""What all requests to a model have in common, whatever it answers: a key's share, the client, the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from starlette.types import Receive

from corepipe.serving.api.answering.output_streams import while_connected
from corepipe.serving.api.bodies.protocol import ModelRequest
from corepipe.serving.api.http.tenants import Quota
from corepipe.serving.supervision.streams import OutputStream
from corepipe.serving.telemetry.requests import FinishedSequence

TRACE = "corepipe.trace"
"""Where the scope of a request that is traced has its Trace."""


class AnswerObserver(Protocol):
    """Who is told how an answer went; `tracing.Trace`."""

    def answered(
        self, operation: str, request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]
    ) -> None: ...


def _no_tokens() -> int:
    """What is generated where nothing is."""
    return 0


@contextmanager
def charged(
    quota: Quota | None, sequences: int, prompt_tokens: int, generated: Callable[[], int] = _no_tokens
) -> Iterator[None]:
    """Holds a key's share for so many sequences: prompts are taken from it now, what is generated at the end.

    Raises ApiError (429) where the key has all it may.
    """
    if quota is None:
        yield
        return
    with quota.holding(sequences - 1):  # the guard holds one
        quota.charge(prompt_tokens)
        try:
            yield
        finally:
            quota.charge(generated())


@asynccontextmanager
async def followed(
    streams: Sequence[OutputStream], receive: Receive, tell: Callable[[], None]
) -> AsyncIterator[None]:
    """Runs the body while the client is there; then ends what is left of the streams, which may have grown
    meanwhile, and has it told."""
    try:
        async with while_connected(receive):
            yield
    finally:
        for stream in streams:
            await stream.aclose()
        tell()
