"""An index of the blocks of several prefix caches, so that a router need not ask each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator


class PrefixIndex:
    """A set of caches for each key of a full block: bit n stands for cache number n.

    `holders`: what it keeps them in, where a mapping without order will not do; empty.
    """

    def __init__(self, holders: dict[Hashable, int] | None = None) -> None:
        self._holders = {} if holders is None else holders

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, key: Hashable, bit: int) -> None:
        """The cache with this bit has the block."""
        self._holders[key] = self._holders.get(key, 0) | bit

    def drop(self, key: Hashable, bit: int) -> None:
        """The cache with this bit has it no more."""
        holders = self._holders.pop(key) & ~bit
        if holders:
            self._holders[key] = holders

    def chain(self, keys: Iterable[Hashable]) -> Iterator[int]:
        """Yields for each full block of a sequence, from the first on, the caches that have it; ends where
        none does."""
        for key in keys:
            holders = self._holders.get(key, 0)
            if not holders:
                return
            yield holders


class RecentPrefixes(PrefixIndex):
    """The index of caches in other processes: what they report may be late, or too much.

    At most `most` keys are kept; those that were not reported for longest are dropped.
    """

    def __init__(self, most: int) -> None:
        self._recent: OrderedDict[Hashable, int] = OrderedDict()
        super().__init__(self._recent)
        self._most = most

    def add(self, key: Hashable, bit: int) -> None:
        super().add(key, bit)
        self._recent.move_to_end(key)
        if len(self._recent) > self._most:
            self._recent.popitem(last=False)

    def drop(self, key: Hashable, bit: int) -> None:
        if key in self._recent:
            super().drop(key, bit)

    def clear(self, bit: int) -> None:
        """The cache with this bit has nothing any more."""
        for key in [key for key, holders in self._recent.items() if holders & bit]:
            super().drop(key, bit)
