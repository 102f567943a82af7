"""Records the requests of clients and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corepipe.engine.messages import DeviceTimes
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.rendering import EmulatedTimes
from corepipe.serving.api.answering.submission import TRACE, AnswerObserver
from corepipe.serving.api.bodies.protocol import ModelRequest
from corepipe.serving.api.bodies.reading import decode
from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
    data_of,
    events_of,
    has_one_form,
)
from corepipe.serving.api.cassettes.library import MAX_FILE
from corepipe.serving.api.cassettes.writer import CassetteWriter
from corepipe.serving.api.http.errors import ApiError
from corepipe.serving.api.table import is_recorded
from corepipe.serving.telemetry.observer import FinishedSequence

TRANSIENT = frozenset({"service_unavailable", "rate_limit_exceeded", "queue_timeout"})
TRANSIENT_TYPES = frozenset({"overloaded_error", "rate_limit_error", "timeout_error"})
"""Codes of errors that come from the server's state at that moment, and their types in Anthropic's API, which
has no codes: a later request may be answered."""


class RecordingMiddleware:
    """ASGI middleware directly around the routes, so that injected faults are not recorded.

    It records exchanges with a complete request and a complete answer to a client that stayed connected;
    transient errors are not recorded.
    """

    def __init__(self, app: ASGIApp, models: Models, writer: CassetteWriter) -> None:
        self._app = app
        self._models = models
        self._writer = writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        recorded = scope["type"] == "http" and is_recorded(scope["method"], scope["path"])
        if not (recorded and has_one_form(scope)):
            await self._app(scope, receive, send)
            return
        tap, device = _ExchangeTap(receive, send), _DeviceTimesObserver(scope.get(TRACE))
        await self._app({**scope, TRACE: device}, tap.receive, tap.send)
        answer = tap.answer()
        request = RecordedRequest.by(scope, b"".join(tap.body))
        if answer is not None and _is_object(request) and not _is_transient(answer):
            self._writer.add(RecordedExchange(request, answer, device.fields(self._models)))


class _ExchangeTap:
    """Wraps `receive` and `send` of a request, and keeps what passes through them."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.body: list[bytes] = []
        self._receive = receive
        self._send = send
        self._began = perf_counter()
        self._received = self._left = self._done = False
        self._status = 0
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._pieces: list[AnswerPiece] = []
        self._size = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._left = True
        elif not self._received:
            self.body.append(message.get("body", b""))
            self._received = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message.get("headers", ())
        else:
            self._add(message.get("body", b""))
            self._done = not (self._left or message.get("more_body", False))
        await self._send(message)

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_FILE:
            self._pieces.clear()  # too large for the writer
        elif data:
            self._pieces.append(AnswerPiece(round((perf_counter() - self._began) * 1e3, 1), data))

    def answer(self) -> RecordedAnswer | None:
        """Returns the answer; None if it is incomplete, too large or transient, or the client left."""
        if not self._done or self._size > MAX_FILE or b"retry-after" in dict(self._headers):
            return None
        return RecordedAnswer.of(self._status, self._headers, self._pieces)


class _DeviceTimesObserver:
    """An AnswerObserver that keeps the device's times, and passes all on to the request's own observer."""

    def __init__(self, trace: AnswerObserver | None) -> None:
        self._trace = trace
        self._times: list[DeviceTimes | None] = []
        self._model: str | None = None

    def answered(
        self, operation: str, request: ModelRequest, answer_id: str, parts: Sequence[FinishedSequence]
    ) -> None:
        self._times = [part.last.device if part.last else None for part in parts]
        self._model = request.model
        if self._trace is not None:
            self._trace.answered(operation, request, answer_id, parts)

    def fields(self, models: Models) -> dict[str, Any]:
        """Returns the device's times as an answer has them; empty if there are none."""
        if not any(self._times):
            return {}
        service = models.named(self._model)
        return EmulatedTimes(service.engine.instance, self._times, service.observer.lateness.verdict).fields()


def _is_object(request: RecordedRequest) -> bool:
    """Returns whether a body is a JSON object; all other bodies are refused alike, also without a model."""
    try:
        decode(request.body if request.method == "POST" else b"{}")
    except ApiError:
        return False
    return True


def _is_transient(answer: RecordedAnswer) -> bool:
    """Returns whether an answer is a stream that ends with an error of `TRANSIENT`."""
    if not answer.streamed or not answer.pieces:
        return False
    last = data_of(events_of(answer.pieces[-1].data)[-1]) or b""
    try:
        error = msgspec.json.decode(last, type=_Failed).error
        return error.code in TRANSIENT or error.type in TRANSIENT_TYPES
    except (msgspec.DecodeError, UnicodeError):
        return False


class _Error(msgspec.Struct):
    code: str | None = None
    type: str | None = None


class _Failed(msgspec.Struct):
    error: _Error
