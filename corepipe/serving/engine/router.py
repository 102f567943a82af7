"""Which data-parallel replica a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What the router knows of a replica.

    cached: tokens of the request's prompt in the replica's prefix cache; load: its unfinished requests.
    """

    cached: int
    load: int


def load_margin(max_num_seqs: int) -> int:
    """How many more requests than the least loaded replica one may have, to be given another."""
    return max(2, max_num_seqs // 4)


def choose_replica(replicas: Sequence[ReplicaView], margin: int) -> int:
    """Index of the replica with the longest cached prefix; the least loaded among equals, then the first.

    A replica with more than `margin` requests above the least loaded one is left out, so that a prefix
    that everybody shares does not send everybody to one replica.
    """
    limit = min(replica.load for replica in replicas) + margin
    eligible = (index for index, replica in enumerate(replicas) if replica.load <= limit)
    return min(eligible, key=lambda index: (-replicas[index].cached, replicas[index].load))
