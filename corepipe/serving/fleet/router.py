"""The choice of a host for each request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.loop import ReplicaView, choose_replica, load_margin
from corepipe.engine.messages import KEY_BYTES, Prefixes, Submit
from corepipe.scheduler.prefix_index import RecentPrefixes
from corepipe.scheduler.request import first_key, next_key
from corepipe.serving.fleet.remote import RemoteHost

MOST_PREFIXES = 1 << 18
"""The number of blocks whose hosts are known; those not reported for the longest time are forgotten."""


class HostRouter:
    """Prefers the host that has the longest prefix of a prompt in its cache, within a margin of load.

    A host has the blocks that it reports, and those of the prompts that it was given until it reports that
    they are dropped: of prompts with a common prefix that come at once, the later ones follow the first.
    Load: the requests that the front has given to a host and whose end it has not received.  Figures that a
    host reports do not count.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block = config.block_size
        self._margin = load_margin(config.max_num_seqs)
        self._index = RecentPrefixes(MOST_PREFIXES)
        self._learns = config.prefix_cache

    def choose(self, remotes: Sequence[RemoteHost], submit: Submit) -> RemoteHost | None:
        """Returns the host for a request; None where no host takes any."""
        takers = [remote for remote in remotes if remote.takes]
        takers = takers or [remote for remote in remotes if remote.serves]
        if not takers:
            return None
        keys = list(self._keys(submit)) if self._learns and len(takers) > 1 else []
        found = list(self._index.chain(keys))
        views = [ReplicaView(self._cached(remote, found), len(remote.open)) for remote in takers]
        chosen = takers[choose_replica(views, self._margin)]
        for key in keys:
            self._index.add(key, 1 << chosen.slot)
        return chosen

    def begin(self, remote: RemoteHost, prefixes: bytes) -> None:
        """Notes that a host serves and has just these prefixes; all hosts have the same block size."""
        if remote.ready is not None:
            self._block = remote.ready.block_size
        self.forget(remote)
        self.hear(remote, Prefixes(prefixes))

    def hear(self, remote: RemoteHost, prefixes: Prefixes) -> None:
        """Takes the prefixes that a host has added to its caches or dropped from them."""
        bit = 1 << remote.slot
        for key in prefixes.added:
            self._index.add(key, bit)
        for key in prefixes.dropped:
            self._index.drop(key, bit)

    def forget(self, remote: RemoteHost) -> None:
        """Forgets the prefixes of a host that cannot be reached or has lost its engine."""
        self._index.clear(1 << remote.slot)

    def _keys(self, submit: Submit) -> Iterator[bytes]:
        """Yields the key of each full block of the prompt that leaves a token to compute: see `Prefixes`."""
        key = first_key(submit.cache_salt)
        for start in range(0, len(submit.prompt) - self._block, self._block):
            key = next_key(key, submit.prompt[start : start + self._block])
            yield key[:KEY_BYTES]

    def _cached(self, remote: RemoteHost, found: Sequence[int]) -> int:
        """Counts the tokens of the prompt that a host has.  found: the holders of each block, as bits."""
        for count, holders in enumerate(found):
            if not holders >> remote.slot & 1:
                return count * self._block
        return len(found) * self._block
