"""An event loop with virtual time, which passes only when all tasks wait: no machine is too slow for it."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable
from typing import Any

TURN_SECONDS = 1e-5
"""Seconds of an iteration of the loop, whatever is done in it, so that polling for a time reaches it."""


class _Selector(selectors.DefaultSelector):
    """A selector that does not wait: when no task can run before a time, it becomes that time."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        if not events and timeout is not None:
            self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A client and, by `serve`, its server, in one loop; `time` is the time of both.

    Connections are pairs of Unix sockets: bytes that are written to one can be read in the next iteration.
    TCP does not promise that where the kernel's threads, too, wait for a core.
    """

    def __init__(self, serve: Callable[[], asyncio.Protocol]) -> None:
        self._clock = _Selector()
        self._serve = serve
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        ours, theirs = socket.socketpair()
        await self.connect_accepted_socket(self._serve, theirs)
        return await super().create_connection(protocol_factory, sock=ours)

    def _run_once(self) -> None:
        self._clock.now += TURN_SECONDS
        super()._run_once()  # type: ignore[misc]
