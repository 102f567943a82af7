"""Signals that a terminal or a service manager sends to a whole group of processes: the first answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""What shells report of a program that SIGINT ended."""

INTERRUPTED_LINE = "corepipe: interrupted"

Handler = Callable[[int, FrameType | None], None]

SHARED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Those that end a process, or tell it something."""

ORDERS = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Those that are to end no server."""


def end_at_once_while_importing() -> None:
    """From now on SIGINT ends the process at once while something is imported; else it interrupts as ever.

    An extension module that is interrupted while it is imported makes another error of that, or prints it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            with suppress(OSError):
                os.write(2, f"{INTERRUPTED_LINE}\n".encode())
            os._exit(INTERRUPTED)
        frame = frame.f_back
    signal.default_int_handler(number, frame)


@contextmanager
def held_back() -> Iterator[None]:
    """A process that is started meanwhile sees none of them until it calls `leave_to_parent`; we do later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHARED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def answered(handlers: Mapping[signal.Signals, Handler], last: Callable[[], bool]) -> Iterator[None]:
    """Has `handlers` answer; afterwards who did before, or nobody where `last`: then this process ends."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last() else handler)


def ignore(numbers: Iterable[signal.Signals]) -> None:
    """They do nothing, until somebody says what they are to do."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def leave_to_parent() -> None:
    """This process does nothing at any of them, whenever they came."""
    ignore(SHARED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHARED)
