"""The channels between a server and its engine: frames of messages on a socket, and a heartbeat in memory.

A frame is a 4-byte little-endian length and one msgpack message of a known type.

The heartbeat shows without a message whether the engine makes progress.  It has two counters, each written by
one thread: one grows with every turn of the loop, also while that waits for commands; the other is the native
executor and grows while a batch is computed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from corepipe.engine.messages import MAX_FRAME

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
    """Cuts a byte stream, however it arrives, into messages of a `kind`: a Struct, or a union of several."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401 -- a union is no type for mypy
        self._decode: Callable[[bytes | bytearray], T] = msgspec.msgpack.Decoder(kind).decode
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


Counter = memoryview
"""A counter of one int64, [1]."""

BEAT_SECONDS = 0.25
"""The longest time between two beats of an engine without work."""

_BYTES = 4096
_LOOP, _NATIVE = 0, 8
"""Places of the counters, in int64: each has a cache line of its own."""


class Heartbeat:
    """One end of the memory behind the file descriptor `fd`, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._counts = memoryview(mmap.mmap(fd, _BYTES)).cast("q")
        self.native: Counter = self._counts[_NATIVE : _NATIVE + 1]

    def beat(self) -> None:
        """Counts a turn of the engine's loop."""
        self._counts[_LOOP] += 1

    def read(self) -> int:
        """Returns a number that changes as long as the engine makes progress."""
        return self._counts[_LOOP] + self._counts[_NATIVE]


def make_heartbeat() -> int:
    """Returns a file descriptor of new, zeroed memory; the caller closes it."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("corepipe-heartbeat")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _BYTES)
    return fd
