"""Signals that a terminal or a service manager sends to a group of processes: only the first handles them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""The exit code that shells report for a program that SIGINT ended."""

INTERRUPTED_LINE = "corepipe: interrupted"

Handler = Callable[[int, FrameType | None], None]

SHARED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that end a process or notify it."""

ORDERS = frozenset({signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that must not end a server."""


def end_at_once_while_importing() -> None:
    """Makes SIGINT end the process at once during an import; otherwise it interrupts as usual.

    An extension module that is interrupted during its import raises another error, or prints the interrupt.
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
    """Blocks these signals meanwhile, and in a process started then until it calls `leave_to_parent`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SHARED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def answered(handlers: Mapping[signal.Signals, Handler], last: Callable[[], bool]) -> Iterator[None]:
    """Sets handlers meanwhile; then restores those before, or ignores signals if `last()`: we are ending."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last() else handler)


def ignore(numbers: Iterable[signal.Signals]) -> None:
    """Ignores signals until another handler is set."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def leave_to_parent() -> None:
    """Makes this process ignore all of these signals, also those that came before."""
    ignore(SHARED)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHARED)
