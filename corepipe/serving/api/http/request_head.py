"""Details of HTTP that uvicorn leaves: checks of heads, offers of other protocols, answers in HTTP/1.0."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from corepipe.serving.api.http.errors import ApiError

MAX_HEAD = 16 * 1024
"""Bytes of a request line and its headers."""
MAX_HEADERS = 100
MAX_URL = 8 * 1024

Headers = list[tuple[bytes, bytes]]
"""Pairs of lower-case names and values, in the order in which they came."""


def check(method: bytes, version: str, headers: Headers) -> None:
    """Raises ApiError for a head that is not HTTP/1.1 or 1.0, or requests what is not supported."""
    if version not in ("1.0", "1.1"):
        raise malformed("Use HTTP/1.1.")
    if method == b"CONNECT":
        allow = {"allow": "GET, POST"}
        raise ApiError(405, "This server is not a proxy.", code="method_not_allowed", headers=allow)
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
            raise malformed("The only supported Transfer-Encoding is chunked.")
        elif name == b"expect" and value.lower() != b"100-continue":
            raise ApiError(417, "The only supported Expect is 100-continue.", code="expectation_failed")
    if hosts != 1 and (hosts or version == "1.1"):
        raise malformed("Send one Host header.")


def origin_form(url: bytes, headers: Headers) -> bytes:
    """Returns the target without its host, which replaces `Host` in `headers` (RFC 9112, 3.2.2).

    Raises ApiError where the target names a user, or no host of HTTP.
    """
    if url.startswith((b"/", b"*")):
        return url
    parsed = httptools.parse_url(url)
    host = parsed.host or b""
    if (parsed.schema or b"").lower() not in (b"http", b"https") or not host or parsed.userinfo:
        raise malformed("The request's target is not valid.")
    authority = b"[%b]" % host if b":" in host else host
    if parsed.port:
        authority += b":%d" % parsed.port
    headers[:] = [(b"host", authority), *(one for one in headers if one[0] != b"host")]
    return (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")


def path_of(raw: bytes) -> str:
    """Returns a path as routes match it.  An encoded slash is part of a segment and stays `%2F`."""
    path = raw.decode("ascii")
    if "%" not in path:
        return path
    return "%2F".join(unquote(part) for part in path.replace("%2f", "%2F").split("%2F"))


def malformed(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_http")


def too_large() -> ApiError:
    message = f"A head has at most {MAX_HEAD} bytes and {MAX_HEADERS} headers."
    return ApiError(431, message, code="headers_too_large")


_OFFER = frozenset({b"upgrade", b"http2-settings"})


def without_offer(url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the head of the same POST without its Upgrade; header names are in lower case."""
    lines = [b"POST %b HTTP/%b" % (url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
            lines.append(b"connection: " + b",".join(kept).strip())
        elif name not in _OFFER:
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def until_close(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Returns `app` for an HTTP/1.0 request, whose `cycle` would send chunks where there is no length."""

    async def answered(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        endless = False

        async def sent(event: ASGISendEvent) -> None:
            nonlocal endless
            if event["type"] == "http.response.start":
                endless = all(name != b"content-length" for name, _ in event.get("headers", ()))
                cycle.chunked_encoding = False if endless else None
            elif endless and event["type"] == "http.response.body":
                cycle.expected_content_length = len(event.get("body", b""))  # so that it counts as sent
            await send(event)

        await app(scope, receive, sent)

    return answered
