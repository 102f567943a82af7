"""Requests from within: lines of batches, answered by the endpoints that answer requests over HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Message

from corepipe.serving.api.batches.lines import Line
from corepipe.serving.api.http.errors import internal
from corepipe.serving.api.http.tenants import SCOPE_KEY, Tenant

AGAIN = frozenset({"rate_limit_exceeded", "service_unavailable", "queue_timeout"})
"""Codes of errors for which a line is tried again: another time it may be answered."""
PATIENCE_SECONDS = 30.0
"""The longest wait before a line is tried again."""


class Answer(NamedTuple):
    """An answer of an endpoint: JSON, and the seconds after which to try again if it says so."""

    request_id: str
    status: int
    body: bytes
    again: float | None


class Caller:
    """Calls the endpoints of `app` for a tenant.

    Nothing but the guard and what counts HTTP requests is left out: the tenant is known already.
    """

    def __init__(self, app: FastAPI, tenant: Tenant) -> None:
        self._app = app
        self._answer = ExceptionMiddleware(app.router, handlers=app.exception_handlers)
        self._tenant = tenant

    async def answer(self, line: Line) -> Answer:
        """Returns the answer to a line; waits and tries again while the server has no place for it."""
        while True:
            answer = await self._post(line)
            if answer.again is None:
                return answer
            await asyncio.sleep(min(answer.again, PATIENCE_SECONDS))

    async def _post(self, line: Line) -> Answer:
        sent: list[Message] = []
        request_id = secrets.token_hex(16)
        body: list[Message] = [{"type": "http.request", "body": line.body, "more_body": False}]

        async def receive() -> Message:
            if body:
                return body.pop()
            await asyncio.Event().wait()  # nobody leaves
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            await self._answer(self._scope(line), receive, send)
        except Exception:
            logging.getLogger(__name__).exception("a line of a batch failed")
            error = internal()
            return Answer(request_id, error.status, error.body(line.url), None)
        start, data = sent[0], b"".join(one.get("body", b"") for one in sent[1:])
        return Answer(
            request_id, start["status"], data, _again(start["status"], dict(start["headers"]), data)
        )

    def _scope(self, line: Line) -> dict[str, object]:
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": line.url,
            "raw_path": line.url.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(line.body))],
            "client": None,
            "server": None,
            "state": {},
            "app": self._app,
            SCOPE_KEY: replace(self._tenant, seed=line.seed),
        }


def _again(status: int, headers: Mapping[bytes, bytes], body: bytes) -> float | None:
    """Returns the seconds after which to try again; None for an answer that is final."""
    if status not in (429, 503, 504) or not any(b'"%b"' % code.encode() in body for code in AGAIN):
        return None
    after = headers.get(b"retry-after", b"1")
    return float(after) if after.isdigit() else 1.0
