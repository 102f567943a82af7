"""Limits the open connections, refuses new ones beyond the limit, and counts why connections were ended."""

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
"""File descriptors that the process needs besides those of connections."""
MAX_REFUSED = 32
"""Connections beyond the limit that get an error; those beyond these are closed without an answer."""
RESTED_SECONDS = 5.0
"""A connection idle for so long may be closed for a new one: no request is on its way then."""


class RefusalReason(Enum):
    """The reason why the server ended a connection early."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    LATE = "late"
    PIPELINED = "pipelined"
    SLOW_READER = "slow_reader"
    CROWDED = "crowded"


class Admission(Enum):
    """The decision about a new connection."""

    TAKEN = "taken"
    REFUSED = "refused"
    """It gets an error that says why."""
    DROPPED = "dropped"


class LimitedConnection(Protocol):
    """A connection that counts against the limit."""

    def close(self) -> None:
        """Closes the connection, because a new one needs its place."""


class ConnectionLimit:
    """The open connections of a listener, at most `limit`.

    A new connection beyond the limit is refused, unless another has been idle for a while between two
    requests: then the one idle for longest is closed.  Connections with a request under way stay open.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: set[LimitedConnection] = set()
        self._refused: set[LimitedConnection] = set()
        self._resting: dict[LimitedConnection, float] = {}  # idle since; the longest idle first
        self.refusals: Counter[RefusalReason] = Counter(dict.fromkeys(RefusalReason, 0))

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, member: LimitedConnection) -> Admission:
        """Decides about a new connection; closes an idle one if that makes room for it."""
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

    def mark_idle(self, member: LimitedConnection) -> None:
        """Notes that a connection is idle: its request was answered, and no other has begun."""
        if member in self._all:
            self._resting[member] = time.monotonic()

    def mark_active(self, member: LimitedConnection) -> None:
        """Notes that a connection is in use: a request begins to arrive."""
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
        """Must be called in that event loop."""
        tasks = len(asyncio.all_tasks())
        yield GaugeMetricFamily("corepipe_event_loop_tasks", "Tasks of the server's event loop.", tasks)
        yield GaugeMetricFamily("corepipe_connections", "Open connections.", len(self._limit))
        refused = CounterMetricFamily(
            "corepipe_connections_refused",
            "Connections that the server ended for a fault of the client.",
            labels=("reason",),
        )
        for reason, count in self._limit.refusals.items():
            refused.add_metric((reason.value,), count)
        yield refused


def make_room(wanted: int) -> int:
    """Raises the process's file limit as far as allowed; returns how many of `wanted` connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft < needed and (hard == resource.RLIM_INFINITY or soft < hard):
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - OTHER_FILES))


def too_few_files(wanted: int, room: int) -> str | None:
    """Returns a warning if `make_room` found room for fewer connections than wanted."""
    if room >= wanted:
        return None
    return (
        f"--max-connections {wanted}: only {room} are accepted, since this process may open too few files; "
        f"raise its limit (ulimit -Hn) to {wanted + OTHER_FILES}"
    )
