"""Which host a request goes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.router import ReplicaView, choose_replica, load_margin
from corepipe.engine.messages import KEY_BYTES, Prefixes, Submit
from corepipe.scheduler.prefix_index import RecentPrefixes
from corepipe.scheduler.request import first_key, next_key
from corepipe.serving.fleet.remote import RemoteHost

MOST_PREFIXES = 1 << 18
"""Blocks whose hosts are known; those of which nothing was heard for longest are forgotten."""


class HostRouter:
    """Prefers the host that has the longest part of a prompt, within a margin of load.

    What a host has is what it says, and what it was given and has not said that it has no more: of prompts
    that begin alike and come at once the later ones follow the first.
    load: what the front has given a host and has not heard the end of.  Nothing that a host says counts.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block = config.block_size
        self._margin = load_margin(config.max_num_seqs)
        self._index = RecentPrefixes(MOST_PREFIXES)
        self._learns = config.prefix_cache

    def choose(self, remotes: Sequence[RemoteHost], submit: Submit) -> RemoteHost | None:
        """None where no host takes anything."""
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
        """A host serves, and finds just these; its blocks are as large as all hosts'."""
        if remote.ready is not None:
            self._block = remote.ready.block_size
        self.forget(remote)
        self.hear(remote, Prefixes(prefixes))

    def hear(self, remote: RemoteHost, prefixes: Prefixes) -> None:
        """A host finds more, or something no more."""
        bit = 1 << remote.slot
        for key in prefixes.added:
            self._index.add(key, bit)
        for key in prefixes.dropped:
            self._index.drop(key, bit)

    def forget(self, remote: RemoteHost) -> None:
        """A host is out of reach, or has lost its engine."""
        self._index.clear(1 << remote.slot)

    def _keys(self, submit: Submit) -> Iterator[bytes]:
        """Of each full block of the prompt behind which a token is left to compute: see `Prefixes`."""
        key = first_key(submit.cache_salt)
        for start in range(0, len(submit.prompt) - self._block, self._block):
            key = next_key(key, submit.prompt[start : start + self._block])
            yield key[:KEY_BYTES]

    def _cached(self, remote: RemoteHost, found: Sequence[int]) -> int:
        """Tokens of the prompt, by who has each of its blocks."""
        for count, holders in enumerate(found):
            if not holders >> remote.slot & 1:
                return count * self._block
        return len(found) * self._block
