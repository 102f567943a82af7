"""Two ports of one server: the public one, and the one of those who run it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

STATE_KEY = "admin"
"""In the state of connections that came in by the admin port: the socket says it, not the request."""


class AdminRouter:
    """Pure ASGI: leads what came in by the admin port to `admin`."""

    def __init__(self, app: ASGIApp, admin: ASGIApp) -> None:
        self._public = app
        self._admin = admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        by_admin = scope["type"] == "http" and scope["state"].get(STATE_KEY)
        await (self._admin if by_admin else self._public)(scope, receive, send)
