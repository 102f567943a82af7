"""Draft tokens: guesses of how an answer continues, so that several of its tokens are computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a request has a Drafter
    from corepipe.scheduler.config import SchedulerConfig
    from corepipe.scheduler.kv_cache import KVCache
    from corepipe.scheduler.request import Chunk, Request


class BatchDrafter(Protocol):
    """Drafts tokens for several requests in one call: for those whose own Drafter proposes none."""

    def depth(self, request: Request, most: int) -> int:
        """Returns how many draft tokens it would propose for the request, at most `most`; 0: none."""

    def propose(self, asked: Sequence[tuple[Request, int]]) -> Sequence[Sequence[int]]:
        """Returns the draft tokens of each (request, most), at most `most` of them; each request holds the
        blocks for them."""


def add_drafts(
    chunks: Sequence[Chunk],
    draftable: Sequence[Chunk],
    tokens: int,
    config: SchedulerConfig,
    kv: KVCache,
    together: BatchDrafter | None = None,
) -> None:
    """Distributes the `tokens` that a batch has left, beside the known tokens of its chunks, as draft tokens
    over the chunks in `draftable`.  A batch with prompts gets no drafts: its time is that of its tokens.
    """
    if not all(chunk.count == 1 and chunk.request.num_generated for chunk in chunks):
        return
    left = tokens if config.draft_rows is None else min(tokens, config.draft_rows - len(chunks))
    waiting: list[tuple[Chunk, int]] = []
    for number, chunk in enumerate(draftable):
        request = chunk.request
        most = _most(request, left // (len(draftable) - number), kv)
        if most <= 0 or request.drafter is None:
            continue
        if drafts := request.drafter.propose(request, most):
            left -= len(drafts)
            _add(chunk, drafts, kv)
        elif together is not None and (wanted := together.depth(request, most)):
            left -= wanted
            _make_room(request, wanted, kv)
            waiting.append((chunk, wanted))
    if together is not None and waiting:
        asked = [(chunk.request, wanted) for chunk, wanted in waiting]
        for (chunk, _), drafts in zip(waiting, together.propose(asked), strict=True):
            _add(chunk, drafts, kv)


def _most(request: Request, most: int, kv: KVCache) -> int:
    """Returns how many draft tokens a request may have, at most `most`.  No request is preempted for their
    blocks, and the token after the last draft must still be within the request's limits."""
    known = request.num_tokens
    most = min(most, request.num_most - known - 1)
    if known + most > request.room and kv.missing(request, known + most) > kv.pool.available:
        most = min(most, request.room - known)
    return most


def _make_room(request: Request, drafts: int, kv: KVCache) -> None:
    """Allocates the blocks for so many draft tokens of the request; the pool must have them."""
    known = request.num_tokens + drafts
    if known > request.room and (missing := kv.missing(request, known)):
        kv.grow(request, missing)


def _add(chunk: Chunk, drafts: Sequence[int], kv: KVCache) -> None:
    """Adds draft tokens to the tokens that a chunk computes."""
    if drafts:
        _make_room(chunk.request, len(drafts), kv)
        chunk.drafts = drafts
        chunk.count += len(drafts)
        chunk.request.num_computed += len(drafts)
