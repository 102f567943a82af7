"""Responses that are being computed: their events so far, for whoever follows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.types import Message, Receive, Send

from corepipe.serving.api.answering.generation import SSE_HEADERS
from corepipe.serving.api.answering.submission import while_connected
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.stores.responses import StoredResponse
from corepipe.serving.stores.table import Row

END = b"\n\n"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _Event(msgspec.Struct):
    type: str
    response: msgspec.Raw = msgspec.Raw()


class RunningResponse:
    """A response that is being computed; `row`: as it is kept.

    failure: the error that ended it before its first event.  task: what computes it, if that is no client's
    request.
    """

    def __init__(self, row: Row[StoredResponse]) -> None:
        self.row = row
        self.events: list[bytes] = []
        self.failure: ApiError | None = None
        self.task: asyncio.Task[None] | None = None
        self._ended = False
        self._news = asyncio.Event()

    def add(self, data: bytes) -> None:
        """Adds the next events."""
        self.events += split(data)
        self._tell()

    def end(self) -> None:
        """Tells those who follow that there are no more events."""
        self._ended = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @property
    def result(self) -> dict[str, object] | None:
        """The response as its last event has it; None while there is no such event."""
        if not self.events:
            return None
        last = msgspec.json.decode(self.events[-1].partition(b"\ndata: ")[2], type=_Event)
        return msgspec.json.decode(last.response) if last.type in _ENDS else None

    async def follow(self, after: int) -> AsyncIterator[bytes]:
        """Yields the events after number `after`, as they come, until the end."""
        at = after + 1
        while True:
            news = self._news
            if at < len(self.events):
                ready = self.events[at:]
                at += len(ready)
                yield b"".join(ready)
            elif self._ended:
                return
            else:
                await news.wait()


class Recorder:
    """An ASGI `send` that keeps the events of a response, and passes all on to its client, if it has one."""

    def __init__(self, running: RunningResponse, send: Send | None = None) -> None:
        self._running = running
        self._send = send

    async def __call__(self, message: Message) -> None:
        if body := message.get("body"):
            self._running.add(body)
        if self._send is not None:
            await self._send(message)


async def nobody_leaves() -> Message:
    """Waits for ever: the `receive` of a response without a client."""
    await asyncio.Event().wait()
    raise AssertionError


async def send_events(running: RunningResponse, after: int, receive: Receive, send: Send) -> None:
    """Sends the events after number `after`, as they come.  Raises ApiError if it failed before the first."""
    begun = False
    async with while_connected(receive):
        async for events in running.follow(after):
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            begun = True
            await send({"type": "http.response.body", "body": events, "more_body": True})
        if not begun:
            if running.failure is not None:
                raise running.failure
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        await send({"type": "http.response.body", "body": b""})


def split(data: bytes) -> list[bytes]:
    """Splits a part of a stream into its events."""
    return [one + END for one in data.split(END) if one]


def joined(events: Sequence[bytes], after: int) -> bytes:
    """Joins the events after number `after`."""
    return b"".join(events[after + 1 :])
