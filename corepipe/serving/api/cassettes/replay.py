"""Answers requests from a library of recorded exchanges; for others an error shows the nearest one."""

from __future__ import annotations

import asyncio
from time import perf_counter

from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.errors import shown
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import STATES
from corepipe.serving.api.answering.submission import while_connected
from corepipe.serving.api.cassettes.exchange import RecordedAnswer, RecordedRequest, has_one_form
from corepipe.serving.api.cassettes.library import CassetteLibrary
from corepipe.serving.api.cassettes.writer import CountOutcome
from corepipe.serving.api.http.errors import ApiError, send_error, unavailable
from corepipe.serving.api.http.guard import read_again, read_body
from corepipe.serving.api.table import is_recorded


class NotRecorded(ApiError):  # noqa: N818 -- an answer, as the other errors
    """The error 404 for a request that is not recorded; it shows the nearest one and the difference."""

    longest = 4000


class ReplayMiddleware:
    """ASGI middleware around the routes and `RecordingMiddleware` that answers from the library.

    A request that is not in the library is refused, unless `computes`.  `paced`: pieces of answers are sent
    at the times of the recording.  `count` is called for each request with "replayed", "refused" or
    "computed".
    """

    def __init__(
        self,
        app: ASGIApp,
        models: Models,
        library: CassetteLibrary,
        count: CountOutcome,
        *,
        paced: bool,
        computes: bool,
    ) -> None:
        self._app = app
        self._models = models
        self._library = library
        self._count = count
        self._paced = paced
        self._computes = computes
        self._comparing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        recorded = scope["type"] == "http" and is_recorded(scope["method"], scope["path"])
        if not (recorded and has_one_form(scope)):
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except ApiError as error:
            await send_error(scope, send, error)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        if self._models.draining:
            raise unavailable(STATES["draining"])
        body = await read_body(receive) if scope["method"] == "POST" else b""
        request = RecordedRequest.by(scope, body)
        found = self._library.take(request)
        if found is not None:
            self._count("replayed")
            await self._play(found.answer, began, receive, send)
        elif (
            self._computes or request.method == "GET"
        ):  # the server itself answers GETs that are not recorded
            self._count("computed")
            await self._app(scope, read_again(body, receive) if request.body else receive, send)
        else:
            self._count("refused")
            raise await self._missed(request)

    async def _play(self, answer: RecordedAnswer, began: float, receive: Receive, send: Send) -> None:
        if not self._paced:
            await _send(answer, None, send)
            return
        async with while_connected(receive):
            await _send(answer, began, send)

    async def _missed(self, request: RecordedRequest) -> NotRecorded:
        """Searches the nearest request, one search at a time: with many recordings it takes a while."""
        async with self._comparing:
            near = await asyncio.to_thread(self._library.nearest, request)
        what = (
            f"No answer is recorded for this {request.method} {shown(request.path)} in {self._library.folder}"
        )
        if near is None:
            message = f"{what}, nor any other for that path; record one with --record."
        else:
            nearest = f"Nearest: {near.file}; its lines have a -, those of this request a +"
            message = f"{what}. {nearest}:\n{near.difference}"
        return NotRecorded(404, message, code="not_recorded")


async def _send(answer: RecordedAnswer, began: float | None, send: Send) -> None:
    """Sends an answer at once, or at the times of the recording since `began`."""
    headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    if not answer.streamed:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    pieces = answer.pieces
    if pieces:
        await _reach(pieces[0].at_ms, began)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    for piece in pieces:
        await _reach(piece.at_ms, began)
        await send({"type": "http.response.body", "body": piece.data, "more_body": piece is not pieces[-1]})
    if not pieces:
        await send({"type": "http.response.body", "body": b""})


async def _reach(at_ms: float, began: float | None) -> None:
    """Waits until `at_ms` after `began`, and again if a timer of whole milliseconds ended too early."""
    while began is not None and (left := at_ms / 1e3 - (perf_counter() - began)) > 0:
        await asyncio.sleep(left)
