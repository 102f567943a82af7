"""One end of a connection between a front and a host: lost as soon as nothing is heard of the other."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

from corepipe.engine.process.frames import FrameDecoder, FrameError, encode_frame
from corepipe.serving.fleet.wire import BEAT_SECONDS, SILENT_SECONDS, Beat

T = TypeVar("T")


class FleetLink(asyncio.Protocol, Generic[T]):
    """Frames of the other side, in `take`; `lost` is told once, why, and then nothing more is taken.

    While it is up it beats; `beat` says what.  All of it runs in one event loop, which must do nothing that
    takes long: what beats here must not wait for a step.
    """

    def __init__(
        self,
        frames: FrameDecoder[T],
        take: Callable[[Sequence[T]], None],
        lost: Callable[[str], None],
        beat: Callable[[], Beat] = Beat,
    ) -> None:
        self._frames = frames
        self._take = take
        self._lost = lost
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> bool:
        """Whether anything can be said."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *messages: object) -> None:
        """Queues messages; where the link is lost there is nobody to send to."""
        if self._transport is not None and self.up:
            self._transport.write(b"".join(map(encode_frame, messages)))

    def close(self, reason: str = "closed") -> None:
        """Ends the link at once, and says so here."""
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
        if now - self._heard >= SILENT_SECONDS:  # we stood still, and the other side has given us up
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
        """TLS ends a connection in which bytes are not the next that the other side has sent."""
        self.close("tampered" if isinstance(exc, ssl.SSLError) else "ended")

    def _tick(self) -> None:
        if self._loop.time() - self._heard >= SILENT_SECONDS:
            self.close("silent")
            return
        self.send(self._beat())
        self._timer = self._loop.call_later(BEAT_SECONDS, self._tick)


def _ignore(_news: object) -> None:
    """After the end."""
