"""What a draft model has computed: of which tokens each KV block has its keys and values.

It keeps them in blocks of the same numbers as the model that it guesses for, so that nobody has to share
blocks out a second time: whoever holds a block finds what somebody has computed in it of the same tokens, and
what is missing is computed when a guess is wanted.  What is right of a block is never written again, since
others may hold it, too: to store an even position clears the odd one after it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from corepipe.engine.batch.block_table import BlockTable
from corepipe.scheduler.request import Request


class _BlockContent(NamedTuple):
    """tokens: those of a block that have been computed, guesses among them; before: what stands for all that
    precede them."""

    before: Hashable
    tokens: Sequence[int]


@dataclass(slots=True)
class DraftProgress:
    """What the draft model has of a request: it has computed the first `right` positions of what is known,
    and should compute those up to `until` next.

    whole: its first blocks, all of whose positions are right.  preemptions: so many the request had then.
    """

    right: int = 0
    until: int = 0
    whole: int = 0
    preemptions: int = 0
    blocks: BlockTable = field(default_factory=BlockTable)


class DraftCache:
    """Blocks of `size` positions."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._computed: dict[int, _BlockContent] = {}

    def follow(self, request: Request, has: DraftProgress) -> None:
        """Brings up to date what is right of a request: never its last known token, which a guess follows."""
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
        """Those that are written where the positions up to `end` are computed."""
        return request.block_ids[has.right // self._size : -(-end // self._size)]

    def note(self, request: Request, has: DraftProgress, guesses: Sequence[int], end: int) -> None:
        """The positions up to `end` have been computed, those behind the known ones of these guesses."""
        size, first = self._size, has.right // self._size
        tokens = [*request.tokens[first * size :], *guesses][: end - first * size]
        for index in range(first, -(-end // size)):
            block, at = request.block_ids[index], (index - first) * size
            if index * size <= request.num_tokens:
                self._computed[block] = _BlockContent(self._before(request, index), tokens[at : at + size])
            else:  # nothing stands for a guess and all before it
                self._computed.pop(block, None)

    def _rows(self, request: Request, index: int) -> int:
        """Positions that are right of a request's block."""
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
        """What stands for all that precedes a request's block."""
        for number in range(len(request.block_keys), index):
            request.block_key(number, self._size)
        return request.block_keys[index - 1] if index else None
