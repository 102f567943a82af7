"""Refusals before a route sees a request: of web pages, hosts, keys, and by the size and type of a body."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from contextlib import ExitStack

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.serving.api.http.errors import ApiError, echo, invalid, send_error
from corepipe.serving.api.http.ports import is_loopback
from corepipe.serving.api.http.tenants import ANYONE, SCOPE_KEY, Quota, Tenant, Tenants
from corepipe.serving.config import ServerConfig
from corepipe.serving.keys import bearer

ANY = "*"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; the browser decides whether a page may read the answer."""
OWN_SITE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site for a page of this server, and for actions of the user."""
PREFLIGHT_SECONDS = 600
"""The time for which a browser caches the answer to a preflight."""
EXPOSED = (
    "request-id",
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

_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The usual loopback names, which need no parsing."""

FORM_BYTES = 16 * 1024
"""Bytes of an upload's body beside those of the file."""

TENSORS = b"inference-header-content-length"
"""The header that says that binary tensors follow the JSON of a body."""
TENSOR_PATHS = ("/v2/models/", "/v2/repository/")
"""Paths whose bodies need no content type: Triton's clients send none.  Web pages, which could do the same,
are refused by their Origin."""


async def read_body(receive: Receive) -> bytes:
    """Reads the whole body; `connection` limits its time.  Raises ApiError if the client disconnects."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False):
        return body
    parts = [body]
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
    if message["type"] == "http.disconnect":
        raise invalid("The client left before the end of the body.")
    return b"".join(parts)


def read_again(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives the body first, which `read_body` has read already."""
    first: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def received() -> Message:
        nonlocal first
        message, first = first, None
        return message or await receive()

    return received


class RequestGuard:
    """ASGI middleware: refuses a request by its headers and, while it is read, by the size of its body.

    host: the address where the port listens.  keyless: paths that need no API key.  posts: the paths of POST
    routes; for other paths the application answers 404, whatever the body.  uploads: those among them whose
    bodies are forms with a file.  origins: those of web pages that may use the server.

    Without API keys a server on a loopback address answers only to loopback names in Host, so that a web page
    cannot reach it through a name of its own (DNS rebinding).
    """

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        host: str,
        tenants: Tenants,
        keyless: Container[str],
        posts: Container[str],
        uploads: Container[str] = (),
        origins: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._keyless = keyless
        self._posts = posts
        self._uploads = uploads
        self._max_body = config.max_body_bytes
        self._max_upload = config.max_file_bytes + FORM_BYTES
        self._check_host = is_loopback(host) and not tenants
        self._origins = Origins(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            granted = self._origins.granted(scope)
            if _is_preflight(scope):
                await _answer_preflight(scope["headers"], granted, send)
                return
            send = self._origins.with_headers(send, granted)
            tenant = self._check(scope)
        except ApiError as error:
            await send_error(scope, send, error)
            return
        scope[SCOPE_KEY] = tenant
        if scope["method"] == "POST":
            receive = self._counted(receive, self._most(scope["path"]))
            if tenant.quota is not None:
                await self._with_quota(tenant.quota, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _with_quota(self, quota: Quota, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request whose key has limits; headers of the answer report what is left of them."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *quota.headers()]}
            await send(message)

        with ExitStack() as held:
            try:
                held.enter_context(quota.holding())
            except ApiError as error:
                await send_error(scope, sending, error)
                return
            await self._app(scope, receive, sending)

    def _check(self, scope: Scope) -> Tenant:
        if self._check_host and not _is_to_loopback(scope):
            message = "This server answers on loopback only; Host names another host."
            raise ApiError(421, message, code="misdirected_request")
        tenant = ANYONE
        if self._tenants and scope["path"] not in self._keyless:
            tenant = self._owner(scope["headers"])
        if scope["method"] == "POST" and scope["path"] in self._posts:
            self._check_body(scope)
        return tenant

    def _owner(self, headers: Iterable[tuple[bytes, bytes]]) -> Tenant:
        """Returns the owner of the key in Authorization or x-api-key.  Raises ApiError without one."""
        given = [bearer(value) for name, value in headers if name == b"authorization"]
        named = [value.strip() for name, value in headers if name == b"x-api-key"]
        if not given and not named:
            raise _unauthorized("Send an API key: Authorization: Bearer KEY.", "missing_api_key")
        if len(given) > 1 or len(named) > 1:
            raise _unauthorized("Send one API key.")
        if len({*given, *named}) > 1:
            raise _unauthorized("Authorization and x-api-key are not the same key.")
        key = given[0] if given else named[0]
        tenant = None if key is None else self._tenants.find(key)
        if tenant is None:
            raise _unauthorized("Incorrect API key.")
        return tenant

    def _check_body(self, scope: Scope) -> None:
        """Checks all headers of a name, not only one: another server on the way may read another one."""
        given: dict[bytes, set[bytes]] = {b"content-encoding": set(), b"content-type": set()}
        length = b""
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = value
            elif name in given:
                given[name].add(value.partition(b";")[0].strip().lower())
        most = self._most(scope["path"])
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise _too_large(most)
        if given[b"content-encoding"] - {b"identity"}:
            message = "Compressed bodies are not supported: send the body uncompressed."
            raise ApiError(415, message, code="unsupported_media_type")
        kind = given[b"content-type"]
        if scope["path"] in self._uploads:
            if kind != {b"multipart/form-data"}:
                message = "Send Content-Type: multipart/form-data."
                raise ApiError(415, message, code="unsupported_media_type")
            return
        if scope["path"].startswith(TENSOR_PATHS) and kind <= {b"application/octet-stream"}:
            return
        if kind != {b"application/json"} and length != b"0":
            raise ApiError(415, "Send Content-Type: application/json.", code="unsupported_media_type")

    def _most(self, path: str) -> int:
        """Returns the most bytes of a body."""
        return self._max_upload if path in self._uploads else self._max_body

    @staticmethod
    def _counted(receive: Receive, most: int) -> Receive:
        left = most

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise _too_large(most)
            return message

        return counted


def _too_large(most: int) -> ApiError:
    message = f"The body is larger than {most} bytes."
    return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def _unauthorized(message: str, code: str = "invalid_api_key") -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})


def _is_to_loopback(scope: Scope) -> bool:
    """Returns whether Host is a loopback name; HTTP/1.0, which no browser uses, need not have a Host."""
    host = next((value for name, value in scope["headers"] if name == b"host"), None)
    if host is None:
        return bool(scope["http_version"] == "1.0")
    name = _host_name(host)
    return name in _LOOPBACK or is_loopback(name)


def _host_name(host: bytes) -> str:
    """Returns the Host header without port and brackets; empty if it is malformed (RFC 9110, 7.2)."""
    matched = _HOST.fullmatch(host.decode("latin-1"))
    return "" if matched is None else matched["address"] or matched["name"] or ""


class Origins:
    """The origins of web pages that may use the server; others may not.

    A browser sends the origin of a page in `Origin` and `Sec-Fetch-Site`, which the page cannot change.
    Requests with neither come from no page and are accepted.  Preflights are answered here, since browsers
    send no key with them.  Credentials such as cookies are never allowed: the server has none.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._any = ANY in allowed
        self._allowed = frozenset(one.encode() for one in allowed)

    def granted(self, scope: Scope) -> HeaderPairs:
        """Returns the headers that allow the page's origin; none where there is no page, or one of this
        server.  Raises ApiError (403) for a request that a page may not send."""
        headers: HeaderPairs = scope["headers"]
        origins = [value for name, value in headers if name == b"origin"]
        if self._any and origins:
            return [(b"access-control-allow-origin", b"*")]
        if len(origins) == 1 and origins[0] in self._allowed:
            return [(b"access-control-allow-origin", origins[0]), *_VARY]
        if _is_preflight(scope) or (scope["method"] not in SAFE_METHODS and _foreign(headers, origins)):
            raise _refusal(origins)
        return []

    def with_headers(self, send: Send, granted: HeaderPairs) -> Send:
        """Returns `send` with the headers that a page's browser needs, where pages are allowed."""
        if not self._allowed:
            return send
        more = [*granted, _EXPOSED] if granted else _VARY

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        return sending


def _is_preflight(scope: Scope) -> bool:
    headers: HeaderPairs = scope["headers"]
    return bool(
        scope["method"] == "OPTIONS"
        and any(name == b"origin" for name, _ in headers)
        and _value(headers, b"access-control-request-method")
    )


async def _answer_preflight(headers: HeaderPairs, granted: HeaderPairs, send: Send) -> None:
    answer = [*granted, (b"access-control-allow-methods", b"GET, POST, DELETE"), _REMEMBERED]
    wanted = _value(headers, b"access-control-request-headers")
    if _NAMES.fullmatch(wanted):
        answer.append((b"access-control-allow-headers", wanted))
    if _value(headers, b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body"})


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
