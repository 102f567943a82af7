"""The lines of a batch's input: what each asks for, or what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from corepipe.serving.api.bodies.reading import BYTE_ORDER_MARK
from corepipe.serving.api.http.errors import ApiError, echo, invalid

MAX_LINES = 50_000
"""The most lines of a batch, as OpenAI's."""
MAX_ID = 512
"""Characters of a custom_id."""


class InputFault(Exception):  # noqa: N818 -- one of the file, which is more than an error of one line
    """A fault of the input for which none of its lines is answered.  line: its number, if it is of one."""

    def __init__(self, code: str, message: str, line: int | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.line = line
        self.param = param


class _Body(msgspec.Struct):
    """The part of a request's body that decides whether it can be answered within a batch."""

    stream: bool | None = None


class _Written(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Line(NamedTuple):
    """A line of the input, number `number` from 1 on.  body: the JSON to post to `url`; empty with an
    `error`, which says why the line cannot be answered.

    id: names the line and its content, so that a result can be held against the input.  seed: for draws of
    the answer, so that it is the same whenever it is computed.
    """

    number: int
    id: str
    seed: int
    custom_id: str | None
    url: str
    body: bytes
    error: ApiError | None = None


def read_lines(path: Path, longest: int, endpoints: tuple[str, ...]) -> Iterator[Line]:
    """Yields the lines of a file that are not blank.  longest: bytes of a line; endpoints: paths for lines.

    Raises OSError.
    """
    with path.open("rb") as file:
        if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
            file.seek(0)
        number = 0
        while data := file.readline(longest + 1):
            number += 1
            too_long = len(data) > longest
            end = data
            while not end.endswith(b"\n") and (end := file.readline(longest + 1)):
                too_long = True
            if too_long or (data := data.strip()):
                yield _line(number, data, longest if too_long else None, endpoints)


def check_lines(lines: Iterator[Line], most: int = MAX_LINES) -> Iterator[None]:
    """Checks what must hold of all lines together, a line for each `next`.  Raises InputFault."""
    count, seen = 0, dict[bytes, int]()
    for line in lines:
        count += 1
        if count > most:
            raise InputFault("too_many_lines", f"The file has more than {most} lines.", line.number)
        if line.custom_id is not None:
            key = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
            if key in seen:
                said = f"custom_id {echo(line.custom_id)} is that of line {seen[key]} already."
                raise InputFault("duplicate_custom_id", said, line.number, "custom_id")
            seen[key] = line.number
        yield
    if not count:
        raise InputFault("empty_file", "The file has no lines.")


def _line(number: int, data: bytes, longest: int | None, endpoints: tuple[str, ...]) -> Line:
    digest = hashlib.sha256(data).digest()
    name, seed = f"batch_req_{digest[:8].hex()}_{number}", int.from_bytes(digest[8:15], "big")
    if longest is not None:
        return Line(number, name, seed, None, "", b"", invalid(f"The line is longer than {longest} bytes."))
    try:
        written = msgspec.json.decode(data, type=_Written)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f"The line is no request with custom_id, method, url and body: {error}."
        return Line(number, name, seed, _custom_id(data), "", b"", invalid(message, code="invalid_line"))
    fault = _fault(written, endpoints)
    body = b"" if fault else bytes(written.body)
    return Line(number, name, seed, written.custom_id, written.url, body, fault)


def _fault(written: _Written, endpoints: tuple[str, ...]) -> ApiError | None:
    if not 0 < len(written.custom_id) <= MAX_ID:
        return invalid(f"custom_id has 1 to {MAX_ID} characters.", "custom_id")
    if written.method.upper() != "POST":
        return invalid(f"method must be POST, not {echo(written.method)}.", "method")
    if written.url not in endpoints:
        return invalid(f"url must be {' or '.join(endpoints)}, not {echo(written.url)}.", "url")
    try:
        streamed = msgspec.json.decode(written.body, type=_Body).stream
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # the endpoint says what is wrong
    return invalid("stream: a line of a batch is answered as a whole.", "stream") if streamed else None


class _Named(msgspec.Struct):
    custom_id: str | None = None


def _custom_id(data: bytes) -> str | None:
    """Returns the custom_id of a line that is wrong otherwise, if it can be read."""
    try:
        return msgspec.json.decode(data, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
