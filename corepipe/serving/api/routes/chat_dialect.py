"""Endpoints of other APIs whose requests are chats in another form: they are answered as chats are.

A dialect reads its own body and translates it into a `ChatRequest`.  Templates, tools, reasoning, grammars,
sampling, quotas, traces and aborts are those of the chat; a renderer of the dialect writes the same parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import ClassVar, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from corepipe.errors import UserError
from corepipe.serving.api.answering.endpoint import (
    ReadRequest,
    drawn_id,
    envelope_of,
    naming,
    read_request,
)
from corepipe.serving.api.answering.generation import Generation, GenerationJob
from corepipe.serving.api.answering.rendering import Envelope, Renderer
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.protocol import ModelRequest
from corepipe.serving.api.http.errors import ApiError, invalid
from corepipe.serving.api.routes.chat import Chat, ChatRequest

D = TypeVar("D", bound=ModelRequest)


@dataclass(frozen=True, slots=True)
class Translation:
    """A request as a chat.

    places: paths of the chat, and where their values are in the request; errors name those.  ignored: paths
    of the request that have no effect.
    """

    chat: ChatRequest
    places: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def place(self, path: str) -> str:
        """Returns where the value at a path of the chat is in the request."""
        known = max((one for one in self.places if _begins(path, one)), key=len, default=None)
        return path if known is None else self.places[known] + path[len(known) :]

    @contextmanager
    def naming_fields(self) -> Iterator[None]:
        """Makes errors name the fields of the request instead of those of the chat."""
        try:
            yield
        except ApiError as error:
            if error.param is not None:
                chats, error.param = error.param, self.place(error.param)
                error.message = error.message.replace(chats, error.param, 1)
            raise
        except UserError as error:
            if error.param is None:
                raise
            there = self.place(error.param)
            raise invalid(error.message.replace(error.param, there, 1), there) from error


def _begins(path: str, start: str) -> bool:
    return path.startswith(start) and path[len(start) : len(start) + 1] in ("", ".", "[")


class ChatDialect(ABC, Generic[D]):
    """An endpoint, as plain ASGI, that answers requests of the type `request` as chats.

    The ids of answers begin with `prefix`.
    """

    request: type[D]
    prefix: ClassVar[str]

    def __init__(self, service: Service) -> None:
        self.service = service
        self.chat = Chat(service)

    @abstractmethod
    async def translate(self, request: ReadRequest[D]) -> Translation:
        """Returns the request as a chat.  Raises ApiError."""

    @abstractmethod
    def renderer(self, body: D, translation: Translation, envelope: Envelope) -> Renderer:
        """Returns what writes the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = perf_counter()
        body, ignored = await read_request(self.service, receive, self.request)
        request = ReadRequest(scope, arrival, body, ignored)
        await self.answer(request, await self.translate(request), receive, send)

    async def answer(
        self, request: ReadRequest[D], translation: Translation, receive: Receive, send: Send
    ) -> None:
        """Answers a request that was translated."""
        envelope = envelope_of(self.service, request.body.model or "", drawn_id(self.prefix))
        with translation.naming_fields():
            job = await self.job(request, translation, envelope)
            told = naming(send, [translation.place(one) for one in job.ignored])
            await Generation(self.service, job).answer(receive, told)

    async def job(
        self, request: ReadRequest[D], translation: Translation, envelope: Envelope
    ) -> GenerationJob:
        """Prepares all that is computed for a request.  Raises ApiError that names fields of the chat."""
        ignored = (*request.ignored, *translation.ignored)
        chat = ReadRequest(request.scope, request.arrival, translation.chat, ignored)
        return await self.chat.job(chat, envelope, self.renderer(request.body, translation, envelope))
