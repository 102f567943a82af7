"""Signals that a terminal or a service manager sends to a whole group of processes: the first answers them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

SHARED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})


@contextmanager
def held_back() -> Iterator[None]:
    """A process that is started meanwhile sees none of them until it calls `leave_to_parent`; we do, later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHARED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """This process does nothing at any of them, whenever they came."""
    for number in SHARED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHARED)
