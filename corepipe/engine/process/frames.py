"""Frames on a byte stream: a 4-byte little-endian length and one msgpack message of a known type."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from corepipe.engine.messages import MAX_FRAME, Command, Event, Start

T = TypeVar("T")

HEADER = 4
"""Bytes of a frame's length."""


class FrameError(ValueError):
    """The stream does not contain frames of this protocol; it cannot be read any further."""


def encode_frame(message: object) -> bytes:
    """Encodes one message as a frame. Raises FrameError where it exceeds MAX_FRAME bytes."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME:
        raise FrameError(f"a message of {len(body)} bytes exceeds a frame's limit of {MAX_FRAME}")
    return len(body).to_bytes(HEADER, "little") + body


class FrameDecoder(Generic[T]):
    """Cuts a byte stream, however it arrives, into messages."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decode = decoder.decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Returns the messages that `data` completes.

        Raises FrameError for a length over MAX_FRAME (before any of the frame is awaited) and for bytes that
        are not a message of the expected type.
        """
        self._buffer += data
        messages: list[T] = []
        start = 0
        while (end := self._end_of_frame(start)) is not None:
            messages.append(self._message(start + HEADER, end))
            start = end
        del self._buffer[:start]
        return messages

    @property
    def missing(self) -> int:
        """The bytes that the begun frame still lacks (until its length is known: that its header lacks)."""
        have = len(self._buffer)
        size = int.from_bytes(self._buffer[:HEADER], "little") if have >= HEADER else 0
        return HEADER + size - have

    def close(self) -> None:
        """Ends the stream. Raises FrameError where it ended within a frame."""
        if self._buffer:
            raise FrameError(f"the stream ended within a frame, {len(self._buffer)} bytes into it")

    def _end_of_frame(self, start: int) -> int | None:
        body = start + HEADER
        if len(self._buffer) < body:
            return None
        size = int.from_bytes(self._buffer[start:body], "little")
        if size > MAX_FRAME:
            raise FrameError(f"a frame of {size} bytes exceeds the limit of {MAX_FRAME}")
        return body + size if len(self._buffer) >= body + size else None

    def _message(self, start: int, end: int) -> T:
        try:
            return self._decode(self._buffer[start:end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"not a message of this protocol: {error}") from error


def start_decoder() -> FrameDecoder[Start]:
    """Decodes the first frame to an engine."""
    return FrameDecoder(msgspec.msgpack.Decoder(Start))


def command_decoder() -> FrameDecoder[Command]:
    """Decodes messages of a server to an engine."""
    return FrameDecoder(msgspec.msgpack.Decoder(Command))


def event_decoder() -> FrameDecoder[Event]:
    """Decodes messages of an engine to a server."""
    return FrameDecoder(msgspec.msgpack.Decoder(Event))
