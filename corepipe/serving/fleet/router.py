"""Which host a request goes to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from corepipe.serving.config import EngineConfig
from corepipe.serving.engine.router import ReplicaView, choose_replica, load_margin
from corepipe.serving.fleet.remote import Remote
from corepipe.serving.messages import Submit

MOST_PREFIXES = 1 << 16
"""Blocks whose hosts are known; those that were not asked for longest are forgotten."""


class Router:
    """Prefers the host that has seen the longest part of a prompt, within a margin of load.

    load: what the front has given a host and has not heard the end of.  Nothing that a host says counts.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._block = config.block_size
        self._margin = load_margin(config.max_num_seqs)
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._learns = config.prefix_cache

    def choose(self, remotes: Sequence[Remote], submit: Submit) -> Remote | None:
        """None where no host takes anything."""
        takers = [remote for remote in remotes if remote.serves and not remote.draining]
        takers = takers or [remote for remote in remotes if remote.serves]
        if not takers:
            return None
        keys = list(self._keys(submit)) if self._learns and len(takers) > 1 else []
        views = [ReplicaView(self._cached(remote, keys), len(remote.open)) for remote in takers]
        chosen = takers[choose_replica(views, self._margin)]
        self._learn(chosen, keys)
        return chosen

    def _keys(self, submit: Submit) -> Iterator[int]:
        """One for each full block of the prompt; it stands for its tokens and all before them."""
        key = hash((submit.owner, submit.cache_salt))
        for start in range(0, len(submit.prompt) - self._block, self._block):
            key = hash((key, *submit.prompt[start : start + self._block]))
            yield key

    def _cached(self, remote: Remote, keys: Sequence[int]) -> int:
        count = 0
        for key in keys:
            if self._seen.get(key) != remote.at.name:
                break
            count += self._block
        return count

    def _learn(self, remote: Remote, keys: Sequence[int]) -> None:
        for key in keys:
            self._seen[key] = remote.at.name
            self._seen.move_to_end(key)
        while len(self._seen) > MOST_PREFIXES:
            self._seen.popitem(last=False)
