"""A `trace.PerfettoTrace` in Perfetto's format: protobuf's wire format, and the few messages that are needed.

Numbers of fields and enumerators are those of Perfetto's protos/perfetto/trace: TracePacket, TrackDescriptor,
TrackEvent, DebugAnnotation, InternedData.  Names are interned: events carry their numbers.  Times are whole
nanoseconds, each boundary rounded by itself, so that nested or adjacent slices stay so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from corepipe.neuron.timing.trace import Arg, PerfettoTrace, Slice, TraceCounter, TraceProcess

SEQUENCE = 1
"""The number of the only writer; interned names are the writer's."""


def varint(number: int) -> bytes:
    """Encodes a number in base 128, least significant part first.  `number` is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _fixed(field: int, kind: str, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack(kind, value)


def _bytes(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def _text(field: int, content: str) -> bytes:
    return _bytes(field, content.encode())


def encode(trace: PerfettoTrace) -> Iterator[bytes]:
    """Yields the packets of a trace; a file is all of them, one after the other."""
    writer = _Writer()
    body = [
        packet for pid, process in enumerate(trace.processes, 1) for packet in writer.process(pid, process)
    ]
    yield writer.interned()
    yield from body


def write(trace: PerfettoTrace, path: Path) -> int:
    """Writes the file and returns its size in bytes."""
    with path.open("wb") as file:
        return sum(file.write(packet) for packet in encode(trace))


class _Writer:
    """Packets of one sequence."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._arg_names: dict[str, int] = {}
        self._known: dict[tuple[object, ...], bytes] = {}
        self._closing = _number(10, SEQUENCE) + _number(13, 2)  # SEQ_NEEDS_INCREMENTAL_STATE

    def interned(self) -> bytes:
        """Returns the first packet: it clears earlier names and gives the numbers of these."""
        names = b"".join(_bytes(2, _number(1, n) + _text(2, name)) for name, n in self._names.items())
        args = b"".join(_bytes(3, _number(1, n) + _text(2, name)) for name, n in self._arg_names.items())
        cleared = _number(10, SEQUENCE) + _number(13, 1)  # SEQ_INCREMENTAL_STATE_CLEARED
        return _bytes(1, cleared + _bytes(12, names + args))

    def process(self, pid: int, process: TraceProcess) -> Iterator[bytes]:
        """Yields a process with a thread per track; the thread with the process's number is shown first."""
        root = pid << 20
        yield self._packet(_bytes(60, _number(1, root) + _bytes(3, _number(1, pid) + _text(6, process.name))))
        for i, track in enumerate(process.tracks):
            thread = _number(1, pid) + _number(2, 1000 * pid + i if i else pid) + _text(5, track.name)
            yield self._track(root + 1 + i, root, _bytes(4, thread))
            at = _number(11, root + 1 + i)
            begin, end = _number(9, 1) + at, _number(9, 2) + at  # TYPE_SLICE_BEGIN, TYPE_SLICE_END
            yield from self._events(track.slices, begin, end)
        for i, counter in enumerate(process.counters, 1 + len(process.tracks)):
            unit = _text(6, counter.unit)
            yield self._track(root + i, root, _text(2, counter.name) + _bytes(8, unit))
            yield from self._values(root + i, counter)

    def _track(self, uuid: int, parent: int, kind: bytes) -> bytes:
        return self._packet(_bytes(60, _number(1, uuid) + _number(5, parent) + kind))

    def _events(self, slices: Sequence[Slice], begin: bytes, end: bytes) -> Iterator[bytes]:
        """Yields begin and end events, those of children within their parent's."""
        for piece in slices:
            yield self._event(_nanoseconds(piece.start), begin + self._described(piece))
            yield from self._events(piece.children, begin, end)
            yield self._event(_nanoseconds(piece.end), end)

    def _described(self, piece: Slice) -> bytes:
        """Returns name, annotations and flows; layers and cores share the first two."""
        key = (piece.name, *((name, type(value), value) for name, value in piece.args.items()))
        if key not in self._known:
            name = self._names.setdefault(piece.name, len(self._names) + 1)
            args = b"".join(_bytes(4, self._arg(*arg)) for arg in piece.args.items())
            self._known[key] = _number(10, name) + args
        flows = b"".join(_fixed(47, "<Q", flow) for flow in piece.sends)
        return self._known[key] + flows + b"".join(_fixed(48, "<Q", flow) for flow in piece.receives)

    def _arg(self, name: str, value: Arg) -> bytes:
        number = _number(1, self._arg_names.setdefault(name, len(self._arg_names) + 1))
        match value:
            case bool():
                return number + _number(2, value)
            case int():
                return number + _number(3, value)
            case float():
                return number + _fixed(5, "<d", value)
            case str():
                return number + _text(6, value)

    def _values(self, uuid: int, counter: TraceCounter) -> Iterator[bytes]:
        at = _number(9, 4) + _number(11, uuid)  # TYPE_COUNTER
        for time, value in counter.values:
            yield self._event(_nanoseconds(time), at + _fixed(44, "<d", value))

    def _event(self, time: int, content: bytes) -> bytes:
        return self._packet(_number(8, time) + _bytes(11, content))

    def _packet(self, content: bytes) -> bytes:
        return _bytes(1, content + self._closing)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
