"""The KV blocks of requests where some layers look back over a window: blocks behind it are given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import cast

from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.kv_cache import CacheListener, KVCache
from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request

EMPTY = -1
"""A place in a table where no block is, as its group looks back no further."""


class WindowedKVCache(KVCache):
    """Blocks of `block_size` positions of the layers of one group each; all groups share one pool.

    A request's table is made of rows: one for each `block_size` positions, with a block of each group, or
    EMPTY.  A group with a window has blocks for what the next token sees and for the tokens in flight, and
    a place becomes empty when all tokens that look back to it have come back.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._windows = config.windows
        self._chunk = config.max_num_batched_tokens
        self._whole = [group for group, window in enumerate(config.windows) if window is None]
        self._found: Counter[Hashable] = Counter()  # groups without a window, by key; for the listener alone
        self._windowed = [
            (group, window) for group, window in enumerate(config.windows) if window is not None
        ]

    def announce(self, index: PrefixIndex, bit: int) -> bool:  # noqa: ARG002 -- it depends on windows, too
        return False

    def listen(self, listener: CacheListener) -> None:
        """It hears of rows of which every group without a window has its block: what is behind a window comes
        and goes while a request runs."""
        self._listener = listener
        self.pool.on_evicted = self._evicted

    def blocks_for(self, tokens: int) -> int:
        """Blocks that are held at most while so many tokens are computed, a batch after the other."""
        return blocks_of_all(self._windows, tokens, self._chunk, self.block_size)

    def missing(self, request: Request, tokens: int) -> int:
        return max(0, self._rows(tokens) * self._groups - len(request.block_ids))

    def lacking(self, request: Request) -> int:
        return max(0, self.blocks_for(request.num_tokens) - len(self.blocks_of(request)))

    def blocks_of(self, request: Request) -> list[int]:
        return [block for block in request.block_ids if block != EMPTY]

    def find_prefix(self, request: Request) -> list[int]:
        """The table of the longest prefix that every group accepts: one with a window does where it has the
        blocks that the next token sees."""
        if not self._prefix_cache:
            return []
        rows = self._whole_rows(request)
        while (hole := self._hole(request, rows)) is not None:
            rows = hole
        first = [0] * self._groups
        for group, window in self._windowed:
            first[group] = self._first_row(window, rows)
        return [
            EMPTY if row < first[group] else self._find(request, row, group)
            for row in range(rows)
            for group in range(self._groups)
        ]

    def commit(self, request: Request, count: int) -> None:
        """Publishes what has been filled, and gives back what is behind the windows."""
        super().commit(request, count)
        table = request.block_ids
        behind = sorted(self._behind(request), reverse=True)  # so that what is oldest is evicted first
        self.pool.release([table[place] for place in behind])
        for place in behind:
            table[place] = EMPTY

    def _publish(self, request: Request, index: int) -> None:
        key, row = request.block_key(index, self.block_size), index * self._groups
        new = 0
        for group, block in enumerate(request.block_ids[row : row + self._groups]):
            new += self.pool.publish(block, (group, key)) and group in self._whole
        if self._listener is not None and new:
            self._found[key] += new
            if self._found[key] == len(self._whole):
                self._listener.stored(request, index)

    def _evicted(self, grouped: Hashable) -> None:
        """A group's block of this key is gone, and with the first of a group without a window the row."""
        group, key = cast("tuple[int, Hashable]", grouped)
        if self._listener is None or group not in self._whole:
            return
        if self._found[key] == len(self._whole):
            self._listener.removed(key)
        self._found[key] -= 1
        if not self._found[key]:
            del self._found[key]

    def _rows(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _first_row(self, window: int, rows: int) -> int:
        """Returns the first row that a token after so many full rows sees."""
        return max(0, (rows * self.block_size - window + 1) // self.block_size)

    def _find(self, request: Request, row: int, group: int) -> int:
        """The block of a full row, EMPTY where it is neither held nor cached."""
        block = self.pool.find((group, request.block_key(row, self.block_size)))
        return EMPTY if block is None else block

    def _whole_rows(self, request: Request) -> int:
        """Rows from the first on of which every group without a window has its block; a token is left to
        compute."""
        most = (request.num_tokens - 1) // self.block_size
        for row in range(most):
            key = request.block_key(row, self.block_size)
            if any(self.pool.find((group, key)) is None for group in self._whole):
                return row
        return most

    def _hole(self, request: Request, rows: int) -> int | None:
        """A row that a prefix of so many rows lacks, and with it all shorter ones that have it; None where
        it lacks none."""
        for group, window in self._windowed:
            for row in range(rows - 1, self._first_row(window, rows) - 1, -1):
                if self._find(request, row, group) == EMPTY:
                    return row
        return None

    def _behind(self, request: Request) -> Iterator[int]:
        """Returns the places of the request's table that have a block and are behind every window."""
        for group, window in self._windowed:
            row = (request.num_done - window + 1) // self.block_size - 1
            place = row * self._groups + group
            while place >= 0 and request.block_ids[place] != EMPTY:
                yield place
                place -= self._groups


def blocks_of_all(windows: Sequence[int | None], tokens: int, chunk: int, size: int) -> int:
    """Blocks of `size` positions that all groups hold at most while so many tokens are computed, `chunk` of
    them at a time."""
    rows = -(-tokens // size)
    return sum(rows if w is None else min(rows, most_blocks(w, chunk, size)) for w in windows)


def most_blocks(window: int, tokens: int, size: int) -> int:
    """Blocks of `size` positions that a group with a window holds at most of a request with so many tokens
    in flight: those before the block that the first of these is in, and those from it on.

    What is behind the window is given back whenever a block has been filled.
    """
    return -(-(window - 1) // size) + (tokens + size - 2) // size + 1
