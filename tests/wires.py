"""Raw bytes to a server and back, for what no HTTP client would send."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.servers import PATIENCE_SECONDS

HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON
"""The start of a request whose framing headers are to follow."""

MALFORMED = {
    "transfer-encoding xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n",
    "transfer-encoding twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "transfer-encoding gzip": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "transfer-encoding identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "transfer-encoding in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\n" + HOST + JSON
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "length and transfer-encoding": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "transfer-encoding and length": POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n012345",
    "two equal lengths": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\n01234",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\n01234",
    "a signed length": POST + b"Content-Length: +5\r\n\r\n01234",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n01234",
    "an overflowing length": POST + b"Content-Length: 18446744073709551616\r\n\r\n01234",
    "a folded header": b"GET /version HTTP/1.1\r\n" + HOST + b"X-A: b\r\n folded\r\n\r\n",
    "bare line feeds": b"GET /version HTTP/1.1\nHost: localhost\n\n",
    "one bare line feed": b"GET /version HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    "a bare carriage return": b"GET /version HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "a space before the colon": b"GET /version HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "a header that starts with a space": b"GET /version HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "a nameless header": b"GET /version HTTP/1.1\r\n" + HOST + b": x\r\n\r\n",
    "NUL in a header": b"GET /version HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "a chunk that ends in a line feed": POST + b"Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
    "a chunk size that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n",
    "HTTP/9.9": b"GET /version HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "HTTP/2 with prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(range(190)),
    "an unknown method": b"FOO /version HTTP/1.1\r\n" + HOST + b"\r\n",
    "a long method": b"X" * 50 + b" /version HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target that is not ASCII": "GET /versión HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "no Host": b"GET /version HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /version HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
}  # fmt: skip
"""Bytes that are not valid HTTP/1.1 and may hide a second request."""


@dataclass(frozen=True)
class Reply:
    """One answer as it came over the wire."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """The error object, with OpenAI's four fields."""
        (error,) = json.loads(self.body).values()
        assert set(error) == {"message", "type", "param", "code"}
        return error


@contextlib.contextmanager
def connected(url: str, timeout: float = PATIENCE_SECONDS) -> Iterator[socket.socket]:
    """A plain connection to the server at `url`."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=timeout) as connection:
        yield connection


def everything(connection: socket.socket | ssl.SSLSocket) -> bytes:
    """Reads until the server hangs up; a reset ends it too."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def exchange(url: str, *sent: bytes) -> list[Reply]:
    """Sends bytes, in these pieces, and reads answers until the server hangs up."""
    with connected(url) as connection:
        for piece in sent:
            try:
                connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                break
        return replies(everything(connection))


def replies(data: bytes) -> list[Reply]:
    """All answers in `data`; the last may lack the end of its body."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, *_ = first.split(" ")
        assert version == "HTTP/1.1", first
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body, data = _chunks(rest)
        else:
            length = int(headers.get("content-length", "0"))
            body, data = rest[:length], rest[length:]
        found.append(Reply(int(status), headers, body))
    return found


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, data = body + data[:length], data[length + 2 :]
        if length == 0:
            break
    return body, data


def post(path: str, body: bytes, *headers: bytes) -> bytes:
    """A whole POST of JSON that ends the connection; each header ends with CRLF."""
    head = b"POST " + path.encode() + b" HTTP/1.1\r\n" + HOST + JSON + b"Connection: close\r\n"
    return head + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def get(path: str, *headers: bytes, close: bool = True) -> bytes:
    """A whole GET; each header ends with CRLF."""
    ending = b"Connection: close\r\n" if close else b""
    return b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + ending + b"".join(headers) + b"\r\n"
