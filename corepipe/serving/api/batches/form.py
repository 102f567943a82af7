"""Forms with a file (multipart/form-data), read part by part as they come."""

from __future__ import annotations

from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from corepipe.serving.api.http.errors import ApiError, echo, invalid

MAX_PARTS = 16
MAX_FIELD = 4096
"""Bytes of a field that is no file."""
MAX_NAME = 255
"""Characters of a file's name."""
FILE = "file"
"""The name of the part that is a file."""


class UploadForm:
    """A form while it is read.  content_type: the header of the request, with the boundary.

    fields: the small fields so far.  filename: as the client calls its file; None before that part.
    Raises ApiError (400) for a form that is malformed.
    """

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise _malformed("its Content-Type has no boundary")
        calls: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._name_header,
            "on_header_value": self._fill_header,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_data,
            "on_part_data": self._take,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, calls)  # type: ignore[arg-type]
        except FormParserError as error:
            raise _malformed(str(error)) from None
        self._parser.logger.disabled = True  # a client could fill the log
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._headers: dict[bytes, bytes] = {}
        self._header = [b"", b""]
        self._parts = 0
        self._name = ""
        self._value = b""
        self._file: list[bytes] = []
        self._ended = False

    def feed(self, data: bytes) -> bytes:
        """Reads the next bytes of the form; returns what they have of the file."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(str(error)) from None
        found, self._file = b"".join(self._file), []
        return found

    def finish(self) -> str:
        """Returns the file's name once the whole body has been read."""
        if not self._ended:
            raise _malformed("it ends before its last boundary")
        if self.filename is None:
            raise invalid("Missing required parameter: 'file'.", FILE, "missing_required_parameter")
        return self.filename

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise invalid(f"A form has at most {MAX_PARTS} parts.", code="request_too_complex")
        self._headers = {}

    def _name_header(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _fill_header(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = [b"", b""]

    def _begin_data(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name, self._value = _text(options.get(b"name", b""), "name of a part"), b""
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").lower()
        if encoding not in (b"7bit", b"8bit", b"binary"):
            raise invalid(f"Content-Transfer-Encoding {echo(encoding.decode('latin-1'))} is not supported.")
        if self._name in self.fields or (self._name == FILE and self.filename is not None):
            raise invalid(f"The form has {echo(self._name)} twice.", self._name)
        if self._name == FILE:
            self.filename = _filename(options.get(b"filename", b"upload"))

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._file.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD:
            raise invalid(f"{echo(self._name)} is longer than {MAX_FIELD} bytes.", self._name)

    def _end_part(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = _text(self._value, self._name)

    def _end(self) -> None:
        self._ended = True


def _filename(given: bytes) -> str:
    name = _text(given, "filename")
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise invalid(f"A file's name has 1 to {MAX_NAME} printable characters.", FILE)
    return name


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise invalid(f"{echo(what)} is not UTF-8 text.", what) from None


def _malformed(reason: str) -> ApiError:
    return invalid(f"The form is malformed: {reason}.", code="invalid_form")
