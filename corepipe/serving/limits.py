"""What is refused before a route sees it: strangers, wrong hosts, bodies too big, slow or odd."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.errors import UserError
from corepipe.serving.config import ServerConfig
from corepipe.serving.http_errors import ApiError, invalid, send_error

BODY_SECONDS = 30.0
"""Time a client has to send a body."""

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""The usual ones, which need no parsing."""

PUBLIC_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/version"})
"""What needs no API key: what load balancers and probes ask for, and nothing that tells of users."""


def check_bind(host: str, api_keys: Iterable[str], *, insecure: bool) -> None:
    """Raises UserError unless `host` is loopback, or API keys guard it, or the user insists (`insecure`)."""
    if is_loopback(host) or any(api_keys) or insecure:
        return
    raise UserError(
        f"--host {host} can be reached from other machines: set --api-key, or --insecure to serve anyone",
        "host",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name counts only if it is localhost."""
    if host in _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def read_body(receive: Receive) -> bytes:
    """The whole body.  Raises ApiError: 408 after `BODY_SECONDS`, 400 if the client leaves."""
    message = await _within(receive, BODY_SECONDS)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    deadline = asyncio.get_running_loop().time() + BODY_SECONDS
    while message.get("more_body", False):
        message = await _within(receive, deadline - asyncio.get_running_loop().time())
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def _within(receive: Receive, seconds: float) -> Message:
    try:
        async with asyncio.timeout(seconds):
            message = await receive()
    except TimeoutError:
        headers = {"connection": "close"}
        raise ApiError(
            408, "The body did not come in time.", code="request_timeout", headers=headers
        ) from None
    if message["type"] == "http.disconnect":
        raise invalid("The client left before the end of the body.")
    return message


class KeyRing:
    """API keys, kept as digests; a look-up takes as long whatever was presented.  Empty ones are none."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys if key]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admits(self, authorization: bytes) -> bool:
        """Whether this Authorization header is `Bearer` and one of the keys."""
        scheme, _, presented = authorization.partition(b" ")
        digest = hashlib.sha256(presented.strip()).digest()
        known = False
        for one in self._digests:
            known |= hmac.compare_digest(one, digest)
        return known and scheme.lower() == b"bearer"


class Guard:
    """Pure ASGI: refuses a request by its headers and, while it is read, by the size of its body.

    Without API keys a server on a loopback address answers only to loopback names in Host, so that a web page
    cannot reach it through a name of its own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._keys = KeyRing(config.api_keys)
        self._max_body = config.max_body_bytes
        self._check_host = is_loopback(config.host) and not self._keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            self._check(scope, headers)
        except ApiError as error:
            await send_error(send, error)
            return
        if scope["method"] == "POST":
            receive = self._counted(receive)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if self._check_host and not is_loopback(_host_name(headers.get(b"host", b""))):
            message = "This server answers on loopback only; Host names another place."
            raise ApiError(421, message, code="misdirected_request")
        if self._keys and scope["path"] not in PUBLIC_PATHS:
            self._check_key(headers)
        if scope["method"] == "POST":
            self._check_body(headers)

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        authorization = headers.get(b"authorization", b"")
        if self._keys.admits(authorization):
            return
        code = "invalid_api_key" if authorization else "missing_api_key"
        message = "Incorrect API key." if authorization else "Send an API key: Authorization: Bearer KEY."
        raise ApiError(401, message, code=code, headers={"www-authenticate": "Bearer"})

    def _check_body(self, headers: Mapping[bytes, bytes]) -> None:
        length = headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > self._max_body):
            raise self._too_large()
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise ApiError(415, "Compressed bodies are not supported.", code="unsupported_media_type")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and length != b"0":
            raise ApiError(415, "Send Content-Type: application/json.", code="unsupported_media_type")

    def _counted(self, receive: Receive) -> Receive:
        left = self._max_body

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        message = f"The body is larger than {self._max_body} bytes."
        return ApiError(413, message, code="request_too_large", headers={"connection": "close"})


def _host_name(host: bytes) -> str:
    """The Host header without its port; an address in brackets keeps its colons."""
    name = host.decode("latin-1")
    head, bracket, _ = name.partition("]")
    return head.lstrip("[") if bracket else name.rpartition(":")[0] or name
