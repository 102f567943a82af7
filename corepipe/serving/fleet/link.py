"""One end of a connection between a front and a host: it is lost as soon as the other end is silent."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from corepipe.engine.channel import FrameDecoder, FrameError, encode_frame
from corepipe.serving.fleet.wire import BEAT_SECONDS, SILENT_SECONDS, Beat

T = TypeVar("T")


class FleetLink(asyncio.Protocol, Generic[T]):
    """Passes the messages of the other side, of a `kind`, to `take`; calls `lost` once with the reason, and
    then `take` no more.

    While it is up it sends the Beat that `beat` returns, again and again.  All of it runs in one event loop,
    which must do nothing that takes long: a beat must not wait for a step of an engine.
    """

    def __init__(
        self,
        kind: Any,  # noqa: ANN401 -- see FrameDecoder
        take: Callable[[Sequence[T]], None],
        lost: Callable[[str], None],
        beat: Callable[[], Beat] = Beat,
    ) -> None:
        self._frames = FrameDecoder[T](kind)
        self._take = take
        self._lost = lost
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        """Tells whether messages can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *messages: object) -> None:
        """Queues messages; drops them where the link is lost."""
        if self._transport is not None and self.up:
            self._transport.write(b"".join(map(encode_frame, messages)))

    def close(self, reason: str = "closed") -> None:
        """Ends the link at once, and calls `lost` with the reason."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        lost, self._lost = self._lost, _ignore
        self._take = _ignore
        lost(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._heard = self._loop.time()
        self._tick()

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if now - self._heard >= SILENT_SECONDS:  # we stood still; the other side has given us up
            self.close("silent")
            return
        self._heard = now
        try:
            messages = self._frames.feed(data)
        except FrameError:
            self.close("frame")
            return
        if messages:
            self._take(messages)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the link.  TLS ends a connection whose bytes are not the next that the other side has sent."""
        self.close("tampered" if isinstance(exc, ssl.SSLError) else "ended")

    def _tick(self) -> None:
        if self._loop.time() - self._heard >= SILENT_SECONDS:
            self.close("silent")
            return
        self.send(self._beat())
        self._timer = self._loop.call_later(BEAT_SECONDS, self._tick)


def _ignore(_news: object) -> None:
    """Takes the place of callbacks after the end of the link."""
