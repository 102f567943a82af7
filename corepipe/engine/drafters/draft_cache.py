"""The KV cache of a draft model: for which tokens each KV block holds its keys and values.

The draft model uses blocks of the same numbers as the served model, so that blocks need not be allocated a
second time: a request that holds a block finds what has been computed in it for the same tokens, and the
missing positions are computed when a draft is asked for. Valid positions of a block are never written again,
since other requests may hold the block as well: to store an even position clears the odd one after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corepipe.engine.batch.arrays import BlockTable
from corepipe.scheduler.request import Request


class _BlockContent(NamedTuple):
    """tokens: the tokens of a block that have been computed, draft tokens among them; before: a key of all
    tokens that precede them."""

    before: Hashable
    tokens: Sequence[int]


@dataclass(slots=True)
class DraftProgress:
    """The progress of the draft model in a request: it has computed the first `right` positions of the known
    tokens, and should compute those up to `until` next.

    whole: the number of its first blocks in which every position is valid. preemptions: the request's
    preemptions at that time.
    """

    right: int = 0
    until: int = 0
    whole: int = 0
    preemptions: int = 0
    blocks: BlockTable = field(default_factory=BlockTable)


class DraftCache:
    """The contents of the draft model's blocks of `size` positions."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._computed: dict[int, _BlockContent] = {}

    def follow(self, request: Request, has: DraftProgress) -> None:
        """Updates which positions of a request are valid: never its last known token, which the draft
        follows."""
        if has.preemptions != request.num_preemptions:
            has.preemptions, has.whole = request.num_preemptions, 0
        while (rows := self._rows(request, has.whole)) == self._size:
            has.whole += 1
        has.right = min(has.whole * self._size + rows, request.num_tokens - 1)
        has.until = request.num_tokens
        for index in range(has.whole + 1, request.num_done // self._size):
            if self._rows(request, index):
                has.until = index * self._size
                break

    def blocks(self, request: Request, has: DraftProgress, end: int) -> list[int]:
        """Returns the blocks that are written when the positions up to `end` are computed."""
        return request.block_ids[has.right // self._size : -(-end // self._size)]

    def note(self, request: Request, has: DraftProgress, drafts: Sequence[int], end: int) -> None:
        """Notes that the positions up to `end` have been computed, those behind the known tokens with these
        draft tokens."""
        size, first = self._size, has.right // self._size
        tokens = [*request.tokens[first * size :], *drafts][: end - first * size]
        for index in range(first, -(-end // size)):
            block, at = request.block_ids[index], (index - first) * size
            if index * size <= request.num_tokens:
                self._computed[block] = _BlockContent(self._before(request, index), tokens[at : at + size])
            else:  # a draft token and all before it have no key
                self._computed.pop(block, None)

    def _rows(self, request: Request, index: int) -> int:
        """Returns the number of valid positions in a request's block."""
        if index >= len(request.block_ids) or index * self._size >= request.num_tokens:
            return 0
        found = self._computed.get(request.block_ids[index])
        if found is None or found.before != self._before(request, index):
            return 0
        known: list[int | None] = [*request.tokens[index * self._size : (index + 1) * self._size], None]
        if found.tokens == known[: len(found.tokens)]:
            return len(found.tokens)
        return next(
            at for at, (one, other) in enumerate(zip(found.tokens, known, strict=False)) if one != other
        )

    def _before(self, request: Request, index: int) -> Hashable:
        """Returns the key of all that precedes a request's block."""
        for number in range(len(request.block_keys), index):
            request.block_key(number, self._size)
        return request.block_keys[index - 1] if index else None
