"""Stored chat completions: kept for their clients, listed, changed and deleted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import (
    FOUND,
    STORING,
    ListQuery,
    Metadata,
    check_metadata,
    listed,
    listing,
    missing,
    store_of,
)
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.http.errors import invalid, unstored
from corepipe.serving.api.http.guard import read_body
from corepipe.serving.api.http.tenants import tenant_of
from corepipe.serving.api.routes.route import ForAllModels, Route
from corepipe.serving.stores.completions import COMPLETIONS, StoredCompletion
from corepipe.serving.stores.errors import StoreError
from corepipe.serving.stores.table import Row

CHATS = "/v1/chat/completions"
"""The path of chat completions, and of the list of those that are stored."""

_OF_METADATA = re.compile(r"metadata\[(.{1,64})\]", re.DOTALL)


class CompletionUpdate(Body, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions/chatcmpl-{completion_id}."""

    metadata: Metadata


class CompletionDeleted(Strict):
    id: str
    object: Literal["chat.completion.deleted"]
    deleted: Literal[True]


class CompletionList(Strict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


def keeper(
    scope: Scope, model: str, name: str, messages: list[dict[str, Any]], metadata: Mapping[str, str] | None
) -> Callable[[bytes], Awaitable[None]]:
    """Returns what stores an answer under the id `name` for a request.  Both may raise ApiError."""
    check_metadata(metadata)
    store, tenant = store_of(scope), tenant_of(scope).salt

    async def keep(completion: bytes) -> None:
        value = StoredCompletion(model, messages, completion, dict(metadata or {}))
        try:
            if await store.run(lambda kept: kept.get(COMPLETIONS, tenant, name)) is not None:
                raise invalid("A stored chat completion has this id already.", "request_id")
            await store.run(lambda kept: kept.insert(COMPLETIONS, tenant, name, value))
        except StoreError as error:
            raise unstored(error) from error

    return keep


def _shown(row: Row[StoredCompletion]) -> dict[str, Any]:
    completion: dict[str, Any] = msgspec.json.decode(row.value.completion)
    return completion | {"metadata": row.value.metadata}


async def _list(_: Models, request: Request) -> Response:
    given = request.query_params
    wanted = {found[1]: given[name] for name in given if (found := _OF_METADATA.fullmatch(name))}
    query = ListQuery.of(given, others=("model", *(f"metadata[{name}]" for name in wanted)), order="asc")
    model = given.get("model")

    def is_listed(one: StoredCompletion) -> bool:
        return model in (None, one.model) and wanted.items() <= one.metadata.items()

    page = await query.page(store_of(request.scope), COMPLETIONS, tenant_of(request.scope).salt, is_listed)
    return JSONResponse(listing(page, _shown))


async def _found(request: Request) -> Row[StoredCompletion]:
    name, tenant = f"chatcmpl-{request.path_params['completion_id']}", tenant_of(request.scope)
    row = await store_of(request.scope).run(lambda kept: kept.get(COMPLETIONS, tenant.salt, name))
    if row is None:
        raise missing("stored chat completion", name, "completion_id")
    return row


async def _describe(_: Models, request: Request) -> Response:
    return JSONResponse(_shown(await _found(request)))


async def _update(_: Models, request: Request) -> Response:
    body = parse(await read_body(request.receive), CompletionUpdate)
    check_metadata(body.metadata)
    row = await _found(request)
    value = msgspec.structs.replace(row.value, metadata=body.metadata or {})
    await store_of(request.scope).run(lambda kept: kept.update(COMPLETIONS, row.tenant, row.id, value))
    return JSONResponse(_shown(replace(row, value=value)))


async def _delete(_: Models, request: Request) -> Response:
    row = await _found(request)
    await store_of(request.scope).run(lambda kept: kept.delete(COMPLETIONS, row.tenant, row.id))
    return JSONResponse({"id": row.id, "object": "chat.completion.deleted", "deleted": True})


async def _messages(_: Models, request: Request) -> Response:
    query, row = ListQuery.of(request.query_params, order="asc"), await _found(request)
    shown = [_as_stored(f"{row.id}-{at}", message) for at, message in enumerate(row.value.messages)]
    if query.descending:
        shown.reverse()
    if query.after is not None:
        places = [one["id"] for one in shown]
        if query.after not in places:
            raise missing("message", query.after, "after")
        shown = shown[places.index(query.after) + 1 :]
    page, more = shown[: query.limit], len(shown) > query.limit
    return JSONResponse(listed(page, more=more))


def _as_stored(name: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message with its parts apart from its text, as OpenAI shows stored ones."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {**message, "id": name, "content": None if parts else content, "content_parts": parts}


_ALL = "/v1/chat/completions/chatcmpl-{completion_id}"


ROUTES: Sequence[Route] = (
    Route(
        "GET",
        CHATS,
        "The stored chat completions of this key",
        ForAllModels(_list),
        "in pages, by `model` and `metadata[NAME]`: [batches](batches.md#stored-chat-completions)",
        answer=CompletionList,
        statuses=FOUND,
    ),
    Route(
        "GET",
        "/v1/chat/completions/chatcmpl-{completion_id}/messages",
        "The messages of a stored chat",
        ForAllModels(_messages),
        "in pages",
        answer=CompletionList,
        statuses=FOUND,
    ),
    Route("GET", _ALL, "A stored chat completion", ForAllModels(_describe), statuses=FOUND),
    Route(
        "POST",
        _ALL,
        "Change the metadata of a stored chat completion",
        ForAllModels(_update),
        request=CompletionUpdate,
        statuses=FOUND | STORING,
    ),
    Route(
        "DELETE",
        _ALL,
        "Delete a stored chat completion",
        ForAllModels(_delete),
        answer=CompletionDeleted,
        statuses=FOUND,
    ),
)
