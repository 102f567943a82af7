"""The file of a cassette: JSON with long strings folded (which is YAML), easy to read and to compare.

Bodies are indented; a stream has a line for each event, above them once the members that its events share.
Reading a file gives back the bytes that were sent: JSON loses the space between its tokens again, and bodies
that would not come back so are kept as text.

A backslash at the end of a line continues a string on the next line, whose indentation does not belong to the
string; if the string itself goes on with a space, a backslash precedes it.  JSON has no line break within a
string, nor a backslash before one, so folding is unambiguous, and unfolding gives back the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from corepipe.serving.api.cassettes.exchange import (
    DEVICE_HEADER,
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
    data_of,
    event_of,
    events_of,
)

VERSION = 1
MAX_TIME_MS = 86_400_000.0
_CONTENT_TYPE = re.compile(r"(?:application/json|text/event-stream)(?:; *charset=utf-8)?")

Members = dict[str, Raw]
_encode = msgspec.json.encode


class MalformedCassette(ValueError):  # noqa: N818 -- named after the file
    """The error that a file is not a cassette, with the reason."""


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    method: Literal["GET", "POST"]
    path: Annotated[str, Meta(max_length=4096)]
    headers: dict[Literal["x-corepipe-device"], Literal["1"]] = {}
    body: Raw = Raw()


class _Headers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    content_type: str
    cache_control: Annotated[str, Meta(pattern=r"^[\x20-\x7e]{0,200}$")] | UnsetType = UNSET
    x_accel_buffering: Literal["no", "yes"] | UnsetType = UNSET
    warning: Annotated[str, Meta(pattern=r"^[\x20-\x7e]{0,2000}$")] | UnsetType = UNSET
    x_corepipe_ignored: Annotated[str, Meta(pattern=r"^[\x20-\x7e]{0,2000}$")] | UnsetType = UNSET


class _Object(msgspec.Struct, frozen=True):
    """A JSON object whose members are not decoded."""


E = TypeVar("E", Raw, _Object | str)
"""An event: its raw JSON, or the type that is checked when the file is read."""


class _Answer(msgspec.Struct, Generic[E], frozen=True, forbid_unknown_fields=True):
    """An answer, with one of `body` (JSON), `text` and `events`.

    `events` are lists, one for each piece of a stream, of texts or of the data's members besides `common`.
    """

    status: Annotated[int, Meta(ge=200, le=599)]
    headers: _Headers
    times_ms: list[Annotated[float, Meta(ge=0, le=MAX_TIME_MS)]]
    body: Raw = Raw()
    text: str | UnsetType = UNSET
    common: Members = {}
    events: list[list[E]] | UnsetType = UNSET


class _File(msgspec.Struct, Generic[E], frozen=True, forbid_unknown_fields=True):
    cassette: Literal[1]
    request: _Request
    answer: _Answer[E]
    device: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(_File[Raw])
_CHECKER = msgspec.json.Decoder(_File[_Object | str])
_MEMBERS = msgspec.json.Decoder(Members)

AT_ONCE = 64 * 1024
"""Bytes of a file from which its exchange is made at once: making it later would delay other requests."""


def to_text(exchange: RecordedExchange) -> bytes:
    """Returns the file of an exchange.  Raises MalformedCassette if a body is not text."""
    request, answer = exchange.request, exchange.answer
    request_fields = [("method", _encode(request.method)), ("path", _encode(request.path))]
    if request.device:
        request_fields.append(("headers", _block({DEVICE_HEADER: "1"}, 2)))
    if request.body:
        request_fields.append(("body", _indented(request.body, 2)))
    answer_fields = [
        ("status", _encode(answer.status)),
        ("headers", _block(answer.headers, 2)),
        ("times_ms", msgspec.json.format(_encode([piece.at_ms for piece in answer.pieces]), indent=0)),
        *_content(answer),
    ]
    parts = [
        ("cassette", _encode(VERSION)),
        ("request", _object(request_fields, 1)),
        ("answer", _object(answer_fields, 1)),
    ]
    if exchange.device:
        parts.append(("device", _block(exchange.device, 1)))
    try:
        return fold((_object(parts, 0) + b"\n").decode()).encode()
    except UnicodeDecodeError as error:
        raise MalformedCassette("the answer is no text") from error


class CassetteFile:
    """A file that was checked: `request` is its request, its exchange is made when it is needed.

    Making the pieces of a stream takes most of the time of reading its file.
    """

    def __init__(self, request: RecordedRequest, plain: bytes) -> None:
        self.request = request
        self._plain = plain
        self._made = _made(request, plain) if len(plain) > AT_ONCE else None

    def exchange(self) -> RecordedExchange:
        """Returns the exchange of the file, its answer decoded."""
        return self._made or _made(self.request, self._plain)


def read(data: bytes, most: int) -> CassetteFile:
    """Reads a file whose answer may have `most` bytes.  Raises MalformedCassette."""
    try:
        data.decode()  # checks the parts that are kept undecoded, too
        plain = compact(unfold(data))
        file = _CHECKER.decode(plain)
        _check(file.answer, len(plain), most)
        request = file.request
        body, device = bytes(request.body), bool(request.headers)
        return CassetteFile(RecordedRequest(request.method, request.path, body, device), plain)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedCassette(str(error)) from error
    except RecursionError as error:
        raise MalformedCassette("it is nested too deeply") from error


def compact(raw: bytes) -> bytes:
    """Returns JSON without space between its tokens, which stay unchanged.  Raises DecodeError."""
    return msgspec.json.format(raw, indent=-1)


# Writing


def _content(answer: RecordedAnswer) -> Iterable[tuple[str, bytes]]:
    if answer.streamed:
        yield from _stream([_events(piece.data) for piece in answer.pieces])
    elif _is_plain(answer.body):
        yield "body", _indented(answer.body, 2)
    else:
        yield "text", _text(answer.body)


def _stream(pieces: Sequence[Sequence[Members | bytes]]) -> Iterable[tuple[str, bytes]]:
    common = _in_common([one for piece in pieces for one in piece if isinstance(one, dict)])
    if common:
        yield "common", _block(common, 2)
    rows = [b"[" + b",\n       ".join(_row(one, common) for one in piece) + b"]" for piece in pieces]
    yield "events", b"[\n      " + b",\n      ".join(rows) + b"\n    ]" if rows else b"[]"


def _row(event: Members | bytes, common: Members) -> bytes:
    if isinstance(event, bytes):
        return _text(event)
    if list(event.items())[: len(common)] != list(common.items()):
        return _text(_data(event))
    rest = {name: value for name, value in event.items() if name not in common}
    return msgspec.json.format(_encode(rest), indent=0)


def _in_common(events: Sequence[Members]) -> Members:
    """Returns the first members of the first event that all events with the same first member share; none
    where that is their type, which differs."""
    if not events or "type" in events[0]:
        return {}
    shared = list(events[0].items())
    for event in events[1:]:
        members = list(event.items())
        if members[:1] == shared[:1]:
            same = [one == other for one, other in zip(shared, members, strict=False)]
            shared = shared[: [*same, False].index(False)]
    return dict(shared)


def _events(data: bytes) -> list[Members | bytes]:
    """Returns the events of a piece of a stream; events that are no JSON objects stay bytes."""
    return [_members(event) or event for event in events_of(data)]


def _members(event: bytes) -> Members | None:
    """Returns the members of an event's JSON object, or None if they would not give back its bytes."""
    inner = data_of(event) or b""
    if not inner.startswith(b"{") or not _is_plain(inner):
        return None
    members = {name: Raw(bytes(value)) for name, value in _MEMBERS.decode(inner).items()}
    return members if _data(members) == event else None


def _data(members: Mapping[str, Raw]) -> bytes:
    return event_of(_encode(members))


def _is_plain(data: bytes) -> bool:
    """Returns whether data are JSON whose bytes come back after indenting and compacting."""
    try:
        msgspec.json.decode(data)  # refuses strings and depths that `format` accepts
        return compact(msgspec.json.format(data, indent=2)) == data
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _text(data: bytes) -> bytes:
    try:
        return _encode(data.decode())
    except UnicodeDecodeError as error:
        raise MalformedCassette("the answer is no text") from error


def _object(members: Iterable[tuple[str, bytes]], depth: int) -> bytes:
    margin = b"\n" + b"  " * depth
    inner = b",".join(margin + b"  " + _encode(name) + b": " + value for name, value in members)
    return b"{" + inner + margin + b"}"


def _block(value: Mapping[str, Any], depth: int) -> bytes:
    return _indented(_encode(value), depth)


def _indented(raw: bytes, depth: int) -> bytes:
    return msgspec.json.format(compact(raw), indent=2).replace(b"\n", b"\n" + b"  " * depth)


# Reading: an answer is checked first and made later, which cannot fail then.


def _made(request: RecordedRequest, plain: bytes) -> RecordedExchange:
    file = _DECODER.decode(plain)
    answer = file.answer
    headers = dict(msgspec.to_builtins(answer.headers))
    timed = [AnswerPiece(at, data) for at, data in zip(answer.times_ms, _pieces(answer), strict=True)]
    return RecordedExchange(request, RecordedAnswer(answer.status, headers, tuple(timed)), file.device)


def _check(answer: _Answer[_Object | str], size: int, most: int) -> None:
    """Raises MalformedCassette, also if the answer of a file of `size` bytes may have more than `most`."""
    kind = answer.headers.content_type
    if not _CONTENT_TYPE.fullmatch(kind):
        raise MalformedCassette(
            "`answer.headers.content-type` is neither application/json nor text/event-stream"
        )
    given = (bytes(answer.body) != b"", answer.text is not UNSET, answer.events is not UNSET)
    if sum(given) != 1 or given[2] != kind.startswith("text/event-stream"):
        raise MalformedCassette("`answer` must have one of body and text, or events if it is a stream")
    pieces = min(len(answer.times_ms), 1)
    if answer.events is not UNSET:
        pieces = len(answer.events)
        common = len(_encode(answer.common))
        if size + common * sum(map(len, answer.events)) > most:  # each event repeats it
            raise MalformedCassette(f"the answer is larger than {most} bytes")
    if pieces != len(answer.times_ms):
        raise MalformedCassette("`answer.times_ms` must have a time for each piece of the answer")


def _pieces(answer: _Answer[Raw]) -> list[bytes]:
    if answer.events is not UNSET:
        head = _encode(answer.common)[1:-1]
        return [b"".join([_restored(bytes(one), head) for one in piece]) for piece in answer.events]
    whole = bytes(answer.body) if answer.text is UNSET else answer.text.encode()
    return [whole] if answer.times_ms else []


def _restored(event: bytes, head: bytes) -> bytes:
    """Returns the bytes of an event; `head`: the members that all events share, without braces."""
    if event.startswith(b'"'):
        return msgspec.json.decode(event, type=str).encode()
    between = b"," if head and event != b"{}" else b""
    return event_of(b"{" + head + between + event[1:])


WIDTH = 100
"""Approximate number of a string's characters on one line."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_UNIT = r"(?:\\u[0-9a-fA-F]{4}|\\.|[^\\])"
_PARAGRAPH = re.compile(rf"(?:(?!\\n){_UNIT})*(?:\\n|$)")
_LINE = re.compile(rf"{_UNIT}{{1,{WIDTH - 1}}}(?: |$)|{_UNIT}{{1,{WIDTH}}}")
_FOLD = re.compile(rb"\\\n *(?:\\(?= ))?")


def fold(text: str) -> str:
    """Folds the strings of `text`: JSON, indented or not, without a line break within a string."""

    def folded(found: re.Match[str]) -> str:
        string = found[0]
        if len(string) <= WIDTH:
            return string
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        margin = "\\\n" + " " * (len(line) - len(line.lstrip(" ")) + 2)
        return '"' + margin.join(_parts(string[1:-1])) + '"'

    return _STRING.sub(folded, text)


def _parts(inside: str) -> list[str]:
    lines = [line for paragraph in _PARAGRAPH.findall(inside) for line in _LINE.findall(paragraph)]
    return [lines[0], *("\\" + line if line.startswith(" ") else line for line in lines[1:])]


def unfold(data: bytes) -> bytes:
    """Returns the bytes that were given to `fold`."""
    return _FOLD.sub(b"", data) if b"\\\n" in data else data
