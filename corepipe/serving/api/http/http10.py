"""Answers in HTTP/1.0, which has no chunks: an answer without a length ends with the connection."""

from __future__ import annotations

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


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
