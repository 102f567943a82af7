"""What a cassette holds: a request, its answer piece by piece with times, and the emulated device's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.bodies.protocol import BYTE_ORDER_MARK, decode

DEVICE_HEADER = "x-corepipe-device"
"""The one header of a request that its answer depends on: it asks for the device's times."""

KEPT_HEADERS = ("content-type", "cache-control", "x-accel-buffering", "warning", IGNORED)
"""Of an answer's headers; the server adds the others anew."""

_EVENT, _EVENT_END = b"data: ", b"\n\n"


@dataclass(frozen=True)
class RecordedRequest:
    """A request.  `body` is a JSON object, empty for a GET; `device`: a header asks for device times."""

    method: str
    path: str
    body: bytes = b""
    device: bool = False

    @staticmethod
    def by(scope: Mapping[str, Any], body: bytes) -> RecordedRequest:
        """The request of an ASGI scope, with its whole body."""
        device = (DEVICE_HEADER.encode(), b"1") in scope["headers"]
        said = body.removeprefix(BYTE_ORDER_MARK) if scope["method"] == "POST" else b""
        return RecordedRequest(scope["method"], scope["path"], said, device)

    @property
    def canonical(self) -> bytes:
        """The body, keys sorted and nothing between its tokens.  Raises ApiError for what is no object."""
        if self.method == "GET":
            return b""
        return msgspec.json.encode(decode(self.body), order="deterministic")

    @cached_property
    def key(self) -> str:
        """The same for requests that are told apart by nothing.  Raises ApiError as `canonical` does."""
        digest = hashlib.sha256()
        for part in (self.method.encode(), self.path.encode(), b"1" if self.device else b"", self.canonical):
            digest.update(b"%d:%b" % (len(part), part))
        return digest.hexdigest()


class AnswerPiece(msgspec.Struct, frozen=True):
    """Bytes of an answer's body, which were sent so many milliseconds after the request had come."""

    at_ms: float
    data: bytes


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer: a stream in pieces, or a whole one in at most one piece."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[AnswerPiece, ...]

    @staticmethod
    def of(
        status: int, headers: Iterable[tuple[bytes, bytes]], pieces: Iterable[AnswerPiece]
    ) -> RecordedAnswer:
        """From what an ASGI application has sent."""
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        kept = {name: given[name] for name in KEPT_HEADERS if name in given}
        sent = tuple(pieces)
        if sent and not kept.get("content-type", "").startswith("text/event-stream"):
            sent = (AnswerPiece(sent[-1].at_ms, b"".join(piece.data for piece in sent)),)
        return RecordedAnswer(status, kept, sent)

    @property
    def streamed(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def body(self) -> bytes:
        return b"".join(piece.data for piece in self.pieces)


@dataclass(frozen=True)
class RecordedExchange:
    """`device`: what the emulated device would have taken, labelled as such; empty where it is not known."""

    request: RecordedRequest
    answer: RecordedAnswer
    device: Mapping[str, Any] = field(default_factory=dict)


def events_of(data: bytes) -> list[bytes]:
    """A piece of a stream as its events; what follows the last end is one, too.  Joined they are `data`."""
    *whole, rest = data.split(_EVENT_END)
    events = [event + _EVENT_END for event in whole]
    return [*events, rest] if rest else events


def data_of(event: bytes) -> bytes | None:
    """What an event says; None where it is not `data` alone."""
    if event.startswith(_EVENT) and event.endswith(_EVENT_END):
        return event[len(_EVENT) : -len(_EVENT_END)]
    return None


def event_of(data: bytes) -> bytes:
    """The event that says so."""
    return _EVENT + data + _EVENT_END
