"""The choice of the data-parallel replica of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from corepipe.scheduler.prefix_index import PrefixIndex
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The state of a replica that decides where a request goes.

    cached: tokens of the request's prompt in the replica's prefix cache; load: its unfinished requests.
    """

    cached: int
    load: int


def load_margin(max_num_seqs: int) -> int:
    """Returns how many more requests than the least loaded replica a replica may have, to be given
    another."""
    return max(2, max_num_seqs // 4)


def choose_replica(replicas: Sequence[ReplicaView], margin: int) -> int:
    """Returns the index of the replica with the longest cached prefix; the least loaded among equals, then
    the first.

    A replica with more than `margin` requests above the least loaded one is left out, so that a prefix that
    all requests share does not send all of them to one replica.
    """
    limit = min(replica.load for replica in replicas) + margin
    eligible = (index for index, replica in enumerate(replicas) if replica.load <= limit)
    return min(eligible, key=lambda index: (-replicas[index].cached, replicas[index].load))


class ReplicaRouter:
    """Chooses as `choose_replica`, among any number of replicas and without asking each of them.

    Sets of replicas are numbers, a bit for each: those that have as many unfinished requests, and those that
    have a block (`PrefixIndex`). Where layers have windows each replica is asked. `margin`: see
    `choose_replica`.
    """

    def __init__(self, schedulers: Sequence[Scheduler], margin: int) -> None:
        self._schedulers = schedulers
        self._margin = margin
        self._loads = [0] * len(schedulers)
        self._loaded = defaultdict(int, {0: (1 << len(schedulers)) - 1})
        index, several = PrefixIndex(), len(schedulers) > 1
        announced = several and all(s.announce(index, 1 << n) for n, s in enumerate(schedulers))
        self._index = index if announced else None

    def loaded(self, number: int) -> None:
        """Notes that replica `number` may have another number of unfinished requests than before."""
        load, before = self._schedulers[number].unfinished, self._loads[number]
        if load == before:
            return
        self._loads[number] = load
        self._loaded[load] |= 1 << number
        self._loaded[before] &= ~(1 << number)
        if not self._loaded[before]:
            del self._loaded[before]

    def choose(self, request: Request) -> int:
        """Returns the number of the replica that a request goes to."""
        if len(self._schedulers) == 1:
            return 0
        if self._index is None:
            views = [ReplicaView(s.cached_prefix(request), s.unfinished) for s in self._schedulers]
            return choose_replica(views, self._margin)
        loads = sorted(self._loaded)
        best = sum(self._loaded[load] for load in loads if load <= loads[0] + self._margin)
        size = self._schedulers[0].block_size
        full = range((request.num_tokens - 1) // size)  # at least one token must be computed
        for holders in self._index.chain(request.keys_of(full, size)):
            if not best & holders:
                break
            best &= holders
        return next(_first(found) for load in loads if (found := best & self._loaded[load]))


def _first(replicas: int) -> int:
    """Returns the lowest number in a set."""
    return (replicas & -replicas).bit_length() - 1
