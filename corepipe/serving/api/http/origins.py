"""Web pages: lets those of the origins that the operator allowed use the server, and refuses others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.serving.api.http.errors import ApiError, echo, send_error

ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; the browser decides whether a page may read the answer."""
OWN_SITE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site for a page of this server, and for actions of the user."""
PREFLIGHT_SECONDS = 600
"""The time for which a browser caches the answer to a preflight."""
EXPOSED = (
    "retry-after",
    "traceparent",
    "www-authenticate",
    "x-corepipe-ignored",
    "x-corepipe-injected",
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-request-id",
)
"""Headers of answers that a page may read; browsers hide most of the others."""

_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")

_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}

HeaderPairs = Sequence[tuple[bytes, bytes]]

_VARY: HeaderPairs = [(b"vary", b"origin")]
_EXPOSED = (b"access-control-expose-headers", ", ".join(EXPOSED).encode())
_REMEMBERED = (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode())


class OriginMiddleware:
    """ASGI middleware: pages of `allowed` origins may use the server, others may not.

    A browser sends the origin of a page in `Origin` and `Sec-Fetch-Site`, which the page cannot change.
    Requests with neither come from no page and are accepted.  Preflights are answered here, since browsers
    send no key with them.  Credentials such as cookies are never allowed: the server has none.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._any = ANY in allowed
        self._allowed = frozenset(one.encode() for one in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: HeaderPairs = scope["headers"]
        origins = [value for name, value in headers if name == b"origin"]
        granted = self._granted(origins)
        if scope["method"] == "OPTIONS" and origins and _value(headers, b"access-control-request-method"):
            await self._preflight(scope, granted, send)
        elif scope["method"] not in SAFE_METHODS and not granted and _foreign(headers, origins):
            await send_error(scope, send, _refusal(origins))
        elif self._allowed:
            await self._app(scope, receive, _with_headers(send, granted))
        else:
            await self._app(scope, receive, send)

    def _granted(self, origins: Sequence[bytes]) -> HeaderPairs:
        """Returns the headers that allow the origin, or none if it is not allowed."""
        if self._any and origins:
            return [(b"access-control-allow-origin", b"*")]
        if len(origins) == 1 and origins[0] in self._allowed:
            return [(b"access-control-allow-origin", origins[0]), *_VARY]
        return []

    async def _preflight(self, scope: Scope, granted: HeaderPairs, send: Send) -> None:
        headers: HeaderPairs = scope["headers"]
        if not granted:
            origins = [value for name, value in headers if name == b"origin"]
            await send_error(scope, send, _refusal(origins))
            return
        answer = [*granted, (b"access-control-allow-methods", b"GET, POST"), _REMEMBERED]
        wanted = _value(headers, b"access-control-request-headers")
        if _NAMES.fullmatch(wanted):
            answer.append((b"access-control-allow-headers", wanted))
        if _value(headers, b"access-control-request-private-network") == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body"})


def _with_headers(send: Send, granted: HeaderPairs) -> Send:
    """Returns `send` with the headers that a page's browser needs."""
    more = [*granted, _EXPOSED] if granted else _VARY

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return sending


def _value(headers: HeaderPairs, name: bytes) -> bytes:
    """Returns the value of the first header of that name, or empty bytes."""
    return next((value for one, value in headers if one == name), b"")


def _foreign(headers: HeaderPairs, origins: Sequence[bytes]) -> bool:
    """Returns whether a page of another origin sent the request, by Sec-Fetch-Site or by Origin."""
    sites = {value for name, value in headers if name == b"sec-fetch-site"}
    host = _value(headers, b"host").lower()
    return not sites <= OWN_SITE or not all(_is_at(one, host) for one in origins)


def _is_at(origin: bytes, host: bytes) -> bool:
    """Returns whether an origin is the requested host; either may omit the scheme's default port."""
    scheme, _, place = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(place) and port is not None and place.removesuffix(port) == host.removesuffix(port)


def _refusal(origins: Sequence[bytes]) -> ApiError:
    who = echo(origins[0].decode("latin-1")) if origins else "another site"
    message = f"Pages of {who} may not use this server; its operator can allow an origin (--allowed-origin)."
    return ApiError(403, message, code="origin_not_allowed")
