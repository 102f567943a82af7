"""The contents of a cassette: a request, the timed pieces of its answer, and the device's times."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from corepipe.serving.api.bodies.client_settings import IGNORED
from corepipe.serving.api.bodies.reading import BYTE_ORDER_MARK, decode

DEVICE_HEADER = "x-corepipe-device"
"""The only header of a request that its answer depends on: it requests the device's times."""

KEPT_HEADERS = ("content-type", "cache-control", "x-accel-buffering", "warning", IGNORED)
"""The headers of an answer that are recorded; the server adds the others again."""

_EVENT, _EVENT_END = b"data: ", b"\n\n"
_NAME = re.compile(rb"event: [^\n]*\n")
_TYPED = re.compile(rb'\{"type":"([a-z_.]{1,64})"')


@dataclass(frozen=True)
class RecordedRequest:
    """A request.  `body` is a JSON object, empty for a GET; `device`: a header requests device times."""

    method: str
    path: str
    body: bytes = b""
    device: bool = False

    @staticmethod
    def by(scope: Mapping[str, Any], body: bytes) -> RecordedRequest:
        """Makes the request of an ASGI scope and its whole body."""
        device = (DEVICE_HEADER.encode(), b"1") in scope["headers"]
        sent = body.removeprefix(BYTE_ORDER_MARK) if scope["method"] == "POST" else b""
        return RecordedRequest(scope["method"], scope["path"], sent, device)

    @property
    def canonical(self) -> bytes:
        """The body with sorted keys and no space between tokens.  Raises ApiError for what is no object."""
        if self.method == "GET":
            return b""
        return msgspec.json.encode(decode(self.body), order="deterministic")

    @cached_property
    def key(self) -> str:
        """A hash that is the same for equal requests.  Raises ApiError as `canonical` does."""
        digest = hashlib.sha256()
        for part in (self.method.encode(), self.path.encode(), b"1" if self.device else b"", self.canonical):
            digest.update(b"%d:%b" % (len(part), part))
        return digest.hexdigest()


def has_one_form(scope: Mapping[str, Any]) -> bool:
    """Returns whether the answer depends on what is recorded of a request alone: lists of models have another
    form for Anthropic's clients, and are not recorded for them."""
    named = (name == b"anthropic-version" for name, _ in scope["headers"])
    return scope["method"] != "GET" or not any(named)


class AnswerPiece(msgspec.Struct, frozen=True):
    """Bytes of an answer's body, and the milliseconds from the request's arrival until they were sent."""

    at_ms: float
    data: bytes


@dataclass(frozen=True)
class RecordedAnswer:
    """An answer: a stream in pieces, or a plain answer in at most one piece."""

    status: int
    headers: Mapping[str, str]
    pieces: tuple[AnswerPiece, ...]

    @staticmethod
    def of(
        status: int, headers: Iterable[tuple[bytes, bytes]], pieces: Iterable[AnswerPiece]
    ) -> RecordedAnswer:
        """Makes the answer from what an ASGI application has sent."""
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
    """A request and its answer; `device`: the emulated device's times, labelled as such, empty if unknown."""

    request: RecordedRequest
    answer: RecordedAnswer
    device: Mapping[str, Any] = field(default_factory=dict)


def events_of(data: bytes) -> list[bytes]:
    """Splits a piece of a stream into events; the rest after the last end is one, too.  Joined: `data`."""
    *whole, rest = data.split(_EVENT_END)
    events = [event + _EVENT_END for event in whole]
    return [*events, rest] if rest else events


def data_of(event: bytes) -> bytes | None:
    """Returns the data of an event, which may have a name; None if it has other fields."""
    named = _NAME.match(event)
    rest = event[named.end() :] if named else event
    if rest.startswith(_EVENT) and rest.endswith(_EVENT_END):
        return rest[len(_EVENT) : -len(_EVENT_END)]
    return None


def event_of(data: bytes) -> bytes:
    """Returns the event with these data, named by their type if that is their first member, as in the APIs
    that name events."""
    typed = _TYPED.match(data)
    name = b"event: %b\n" % typed[1] if typed else b""
    return name + _EVENT + data + _EVENT_END
