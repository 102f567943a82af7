"""The server under test: its address, whether it answers, its models, and whether it is a corepipe server."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import msgspec

from corepipe.bench.stream import decoded, error_message
from corepipe.bench.transport import Address, ConnectionPool, TransportError
from corepipe.errors import UserError
from corepipe.version import __version__

ASK_SECONDS = 30.0
"""Timeout of requests that need no model."""

RETRY_SECONDS = 0.5
"""Seconds between two attempts to reach a server that is not up yet."""

OURS = "corepipe"
"""The owner of models on a corepipe server."""


@dataclass(frozen=True, slots=True)
class Target:
    """A base URL, parsed.  `prefix` is the path before /v1, empty for most."""

    url: str
    address: Address
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Reads http://host:port[/path][/v1]; without a scheme it is http.  Raises UserError."""
        whole = url if re.match(r"\w+://", url) else f"http://{url}"
        try:
            parts = urlsplit(whole)
            port = parts.port
        except ValueError as error:
            raise UserError(f"{url}: {error}; give http://HOST:PORT", "url") from error
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
            raise UserError(f"{url}: not the URL of a server; give http://HOST:PORT", "url")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        prefix = re.sub(r"/v1(/(chat/)?completions)?$", "", parts.path.rstrip("/"))
        address = Address(parts.hostname, port or (443 if tls else 80), tls)
        return cls(f"{parts.scheme}://{parts.netloc}{prefix}", address, prefix)


class WholeResponse:
    """Reads an answer whole."""

    enough = False

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    def start(self, status: int) -> None:
        self.status = status

    def read(self, data: bytes, now: float) -> None:  # noqa: ARG002
        self.body += data


class Http:
    """Makes and sends requests to one target; the streams of a load test use `pool` directly."""

    def __init__(self, target: Target, api_key: str | None) -> None:
        self.target = target
        self.pool = ConnectionPool(target.address)
        lines = [
            f"host: {urlsplit(target.url).netloc.rpartition('@')[2]}",
            f"user-agent: corepipe-bench/{__version__}",
            "accept: */*",
        ]
        lines += [f"authorization: Bearer {api_key}"] if api_key else []
        self._headers = "\r\n".join(lines)

    def request(self, method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
        """Returns the bytes of a request; `more` are header lines, each with its line end."""
        head = f"{method} {self.target.prefix}{path} HTTP/1.1\r\n{self._headers}\r\n{more}"
        if body:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body

    async def ask(self, path: str, document: object = None) -> tuple[int, bytes]:
        """Sends a GET, or a POST with the document; returns (status, body).  Raises TransportError."""
        answer = WholeResponse()
        body = b"" if document is None else msgspec.json.encode(document)
        request = self.request("POST" if body else "GET", path, body)
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self.pool.exchange(request, answer)
        except TimeoutError as error:
            raise TransportError("timeout", f"no answer to {path} in {ASK_SECONDS:g} s") from error
        return answer.status, answer.body


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The identity of a server: its model, and a corepipe server's placement (None: another server)."""

    model: str
    placement: Mapping[str, Any] | None

    @property
    def is_corepipe(self) -> bool:
        return self.placement is not None


async def find(
    http: Http, model: str | None, wait: float = 0.0, adapters: Sequence[str] = ()
) -> ServerIdentity:
    """Identifies a server; waits up to `wait` seconds for one that is not up.

    model: the model to use; None: the first that it serves.  adapters: others that it must serve.  Raises
    UserError for no server, no key, no such model.
    """
    cards = await _models(http, monotonic() + wait, named=model is not None)
    served = [str(card.get("id")) for card in cards]
    if model is None and not served:
        raise UserError(f"{http.target.url} lists no models; name one with --model", "model")
    if model is not None and served and model not in served:
        raise UserError(f"--model {model}: not served here; there is {', '.join(served[:10])}", "model")
    for name in adapters:
        if served and name not in served:
            message = f"--lora-modules {name}: not served here; there is {', '.join(served[:10])}"
            raise UserError(message, "lora_modules")
    chosen = model or served[0]
    card = next((card for card in cards if card.get("id") == chosen), {})
    ours = card.get("owned_by") == OURS
    placement = await _document(http, "/v1/placement") if ours else None
    return ServerIdentity(chosen, placement and _of_model(placement, chosen))


def _of_model(placement: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the placement of a model; of several, a name that is not listed stands for the first."""
    several: Sequence[Mapping[str, Any]] = placement.get("models", [placement])
    return next((one for one in several if one.get("name") == name), several[0])


async def _models(http: Http, deadline: float, *, named: bool) -> Sequence[Mapping[str, Any]]:
    """Returns the cards of the server's models; an empty list where it lists none and the model is named."""
    url = http.target.url
    while True:
        try:
            status, body = await http.ask("/v1/models")
            loading = status == 503 or (await _loading(http) if status == 200 else False)
            problem = f"{url} is not ready: {error_message(body)}" if status == 503 else f"{url} still loads"
        except TransportError as error:
            if error.kind == "tls":
                raise UserError(
                    f"{url}: {error}; SSL_CERT_FILE names certificates to trust", "url"
                ) from error
            status, body, loading = 0, b"", True
            problem = f"{url}: no server answers there ({error}); is it up? --wait gives it time"
        if not loading:
            return _cards(url, status, body, named=named)
        if monotonic() > deadline:
            raise UserError(problem, "url")
        await asyncio.sleep(RETRY_SECONDS)


async def _loading(http: Http) -> bool:
    """Tells whether a corepipe server still loads: it lists its models before it serves them."""
    status, _ = await http.ask("/health")
    return status == 503


def _cards(url: str, status: int, body: bytes, *, named: bool) -> Sequence[Mapping[str, Any]]:
    if status in {401, 403}:
        raise UserError(
            f"{url} refuses the request ({status}: {error_message(body)}); give --api-key", "api_key"
        )
    if status in {404, 405} or (named and status != 200):
        return []
    if status != 200:
        raise UserError(f"{url}/v1/models answers {status}: {error_message(body)}", "url")
    document = decoded(body)
    cards = document.get("data") if isinstance(document, dict) else None
    if cards is None and not named:
        raise UserError(f"{url}/v1/models lists no models: no OpenAI-compatible server?", "url")
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


async def _document(http: Http, path: str) -> Mapping[str, Any] | None:
    status, body = await http.ask(path)
    document = decoded(body) if status == 200 else None
    return document if isinstance(document, dict) else None


@dataclass(frozen=True, slots=True)
class DevicePace:
    """Counts of a corepipe server's steps that kept the device's pace so far, over its replicas.

    time_scale_needed: the time scale at which it would, if it does not; None: unknown.
    """

    steps: int = 0
    late_steps: int = 0
    time_scale_needed: float | None = None


async def pace(http: Http) -> DevicePace:
    """Reads the pace of a corepipe server; zeros if it does not answer."""
    try:
        _, body = await http.ask("/metrics")
    except TransportError:  # the requests of the run have reported it
        return DevicePace()
    text = body.decode(errors="replace")

    def total(name: str) -> float:
        values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))

    steps, late = (int(total(f"corepipe_{name}_total")) for name in ("steps", "late_steps"))
    valid = total("corepipe_device_times_valid")
    return DevicePace(steps, late, None if valid else total("corepipe_time_scale_needed") or None)
