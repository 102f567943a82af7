"""The contents of an engine's prefix caches, for a front that routes requests to it: keys that are added and
removed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import cast

from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.messages import KEY_BYTES, Prefixes
from corepipe.scheduler.request import Request


class PrefixChanges:
    """All replicas' caches as one; implements `CacheListener` for each of them.

    A key is the first `KEY_BYTES` of a block's key: a front that takes two different blocks for the same one
    sends a request to an engine where its prompt must be computed.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._holders: Counter[bytes] = Counter()
        self._found: dict[bytes, bool] = {}

    def stored(self, request: Request, index: int) -> None:
        """See `CacheListener`."""
        key = _short(request.block_key(index, self._block_size))
        self._holders[key] += 1
        if self._holders[key] == 1:
            self._found[key] = True

    def removed(self, key: Hashable) -> None:
        """See `CacheListener`."""
        short = _short(key)
        self._holders[short] -= 1
        if not self._holders[short]:
            del self._holders[short]
            self._found[short] = False

    def take(self) -> Prefixes | None:
        """Returns the changes since the last call; None where there are none."""
        if not self._found:
            return None
        found, self._found = self._found, {}
        stored = b"".join(key for key, there in found.items() if there)
        return Prefixes(stored, b"".join(key for key, there in found.items() if not there))


def prefix_changes(deployment: Deployment) -> PrefixChanges | None:
    """Returns None where no block stays, every block leaves its window at some time, or a prefix is more than
    blocks."""
    limits = deployment.replicas[0].scheduler
    blocks = limits.keeps_state and limits.prefix_cache and limits.state_span is None
    if not blocks or None not in limits.windows:
        return None
    return PrefixChanges(limits.block_size)


def _short(key: Hashable) -> bytes:
    return cast("bytes", key)[:KEY_BYTES]
