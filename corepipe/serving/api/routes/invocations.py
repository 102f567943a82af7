"""POST /invocations, the route of Amazon SageMaker: a chat or a completion, by the fields of the body."""

from __future__ import annotations

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import BYTE_ORDER_MARK, decode
from corepipe.serving.api.http.errors import invalid
from corepipe.serving.api.http.guard import read_again, read_body
from corepipe.serving.api.routes.chat import Chat
from corepipe.serving.api.routes.completions import Completions
from corepipe.serving.api.routes.route import EVENTS, JSON, generating


class Invocations:
    """The endpoint, as plain ASGI.  A body without `model` means the served model."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes: dict[str, ASGIApp] = {"messages": Chat(service), "prompt": Completions(service)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await read_body(receive)).removeprefix(BYTE_ORDER_MARK)
        fields = decode(body)
        shapes = [name for name in self._routes if name in fields]
        if len(shapes) != 1:
            raise invalid("Send either messages, for a chat, or a prompt.", "messages")
        if "model" not in fields:
            name = msgspec.json.encode(self._service.require_model(None))
            body = b'{"model":%b,%b' % (name, body.lstrip()[1:])
        await self._routes[shapes[0]](scope, read_again(body, receive), send)


ROUTE = generating(
    "/invocations",
    "A chat or a completion, by the fields of the body",
    Invocations,
    "`messages` or a `prompt` (SageMaker); needs no `model`",
    others=(JSON, EVENTS),
)
