"""How many connections are open at once, who is turned away when there are too many, and why others ended."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

OTHER_FILES = 128
"""File descriptors that the process needs for other things than connections."""
MAX_REFUSED = 32
"""Connections beyond the limit that are being told so; those beyond these are closed without a word."""
RESTED_SECONDS = 5.0
"""After so long without a request an idle connection may be closed for a new one: none is on its way then."""


class RefusalReason(Enum):
    """Why a connection ended that did not have to."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    LATE = "late"
    PIPELINED = "pipelined"
    SLOW_READER = "slow_reader"
    CROWDED = "crowded"


class Admission(Enum):
    """What becomes of a new connection."""

    TAKEN = "taken"
    REFUSED = "refused"
    """It is told why."""
    DROPPED = "dropped"


class LimitedConnection(Protocol):
    """A connection."""

    def close(self) -> None:
        """End it: another one needs the room."""


class ConnectionLimit:
    """The open connections of a listener, of which there are at most `limit`.

    Where one more comes it is turned away, unless one rests between two requests, and has for a while: that
    one is closed, the longest resting first.  Who is sending a request, or waits for an answer, stays.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[LimitedConnection] = set()
        self._refused: set[LimitedConnection] = set()
        self._resting: dict[LimitedConnection, float] = {}  # since when; the longest first
        self.refusals: Counter[RefusalReason] = Counter(dict.fromkeys(RefusalReason, 0))

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, member: LimitedConnection) -> Admission:
        """Whether there is room for it, or room could be made."""
        if len(self._all) >= self._limit and not self._make_room():
            self.refusals[RefusalReason.CROWDED] += 1
            if len(self._refused) >= MAX_REFUSED:
                return Admission.DROPPED
            self._refused.add(member)
            return Admission.REFUSED
        self._all.add(member)
        return Admission.TAKEN

    def _make_room(self) -> bool:
        longest = next(iter(self._resting), None)
        if longest is None or time.monotonic() - self._resting[longest] < RESTED_SECONDS:
            return False
        self.leave(longest)
        longest.close()
        return True

    def rests(self, member: LimitedConnection) -> None:
        """It has been answered, and nothing of another request has come."""
        if member in self._all:
            self._resting[member] = time.monotonic()

    def asks(self, member: LimitedConnection) -> None:
        """A request begins to come."""
        self._resting.pop(member, None)

    def leave(self, member: LimitedConnection) -> None:
        self._all.discard(member)
        self._refused.discard(member)
        self._resting.pop(member, None)


class ConnectionMetrics(Collector):
    """`corepipe_connections`, `corepipe_connections_refused`, and the tasks of the loop that serves them."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit

    def collect(self) -> Iterator[Metric]:
        """To be called in that loop."""
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("corepipe_event_loop_tasks", "Tasks of the server's event loop.", tasks)
        yield GaugeMetricFamily("corepipe_connections", "Open connections.", len(self._limit))
        refused = CounterMetricFamily(
            "corepipe_connections_refused", "Connections ended for a fault of the client.", labels=("reason",)
        )
        for reason, count in self._limit.refusals.items():
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


def too_few_files(wanted: int, room: int) -> str | None:
    """What to tell who wanted so many connections where `make_room` found less room."""
    if room >= wanted:
        return None
    return (
        f"--max-connections {wanted}: there is room for {room}, since this process may open few files; "
        f"raise the limit (ulimit -Hn) to {wanted + OTHER_FILES}"
    )
