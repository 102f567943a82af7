"""How many connections are open at once, who goes when there are too many, and how many ended that way."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER_FILES = 128
"""File descriptors that the process needs for other things than connections."""


class Refusal(Enum):
    """Why a connection ended that did not have to."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    LATE = "late"
    PIPELINED = "pipelined"
    SLOW_READER = "slow_reader"
    CROWDED = "crowded"


class Member(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Close at once: another one needs the room."""


class Crowd:
    """The open connections of a listener, of which there are at most `limit`.

    Where one more comes, the one goes that has waited longest for its client to finish asking.  Where all
    have asked, the newcomer is turned away.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[Member] = set()
        self._waiting: dict[Member, None] = {}  # the longest waiting first
        self.refusals: Counter[Refusal] = Counter(dict.fromkeys(Refusal, 0))

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, member: Member) -> bool:
        """Whether there is room for it, or room could be made."""
        if len(self._all) >= self._limit:
            self.refusals[Refusal.CROWDED] += 1
            if not self._waiting:
                return False
            next(iter(self._waiting)).evict()
        self._all.add(member)
        self.waits(member)
        return True

    def waits(self, member: Member) -> None:
        """Its client has nothing to expect: it has yet to ask."""
        self._waiting[member] = None

    def asked(self, member: Member) -> None:
        """Its request is whole."""
        self._waiting.pop(member, None)

    def leave(self, member: Member) -> None:
        self._all.discard(member)
        self._waiting.pop(member, None)


class CrowdMetrics(Collector):
    """`corepipe_connections`, `corepipe_connections_refused`, and the tasks of the loop that serves them."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def collect(self) -> Iterator[Metric]:
        """To be called in that loop."""
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("corepipe_event_loop_tasks", "Tasks of the server's event loop.", tasks)
        yield GaugeMetricFamily("corepipe_connections", "Open connections.", len(self._crowd))
        refused = CounterMetricFamily(
            "corepipe_connections_refused", "Connections ended for a fault of the client.", labels=("reason",)
        )
        for reason, count in self._crowd.refusals.items():
            refused.add_metric((reason.value,), count)
        yield refused


def make_room(wanted: int) -> int:
    """How many connections there may be, `wanted` at most; lets the process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft < needed and (hard == resource.RLIM_INFINITY or soft < hard):
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - OTHER_FILES))
