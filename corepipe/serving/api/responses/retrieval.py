"""The routes of stored responses: retrieve, delete and cancel them, and list their input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.generation import SSE_HEADERS
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import FOUND, ListQuery, missing
from corepipe.serving.api.http.errors import echo, invalid
from corepipe.serving.api.http.tenants import tenant_of
from corepipe.serving.api.responses.kept import kept_of
from corepipe.serving.api.responses.running import RunningResponse, joined, send_events
from corepipe.serving.api.routes.route import EVENTS, JSON, ForAllModels, Route
from corepipe.serving.stores.responses import StoredResponse
from corepipe.serving.stores.table import Row

_ONE = "/v1/responses/{response_id}"
_KNOWN = ("stream", "starting_after", "include", "include[]", "include_obfuscation")


class DeletedResponse(Strict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(Strict):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Followed(Response):
    """The events of a response that is being computed, as they come."""

    def __init__(self, running: RunningResponse, after: int) -> None:
        super().__init__()
        self._running = running
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send_events(self._running, self._after, receive, send)


async def _found(request: Request) -> Row[StoredResponse]:
    return await kept_of(request.scope).find(tenant_of(request.scope), request.path_params["response_id"])


async def _retrieve(_: Models, request: Request) -> Response:
    query = request.query_params
    for name in query:
        if name not in _KNOWN:
            raise invalid(f"Unsupported parameter: {echo(name)}.", name, "unsupported_parameter")
    row, kept = await _found(request), kept_of(request.scope)
    running = kept.running(row.id)
    if query.get("stream", "false").lower() not in ("true", "1"):
        return JSONResponse(_now(row.value.response, running))
    if not row.value.streamed:
        raise invalid("This response was created without stream: true.", "stream")
    after = _number(query.get("starting_after", "-1"))
    if running is not None:
        return _Followed(running, after)
    events = joined(await kept.events(row), after)
    return Response(events, headers={name.decode(): value.decode() for name, value in SSE_HEADERS})


def _now(response: Mapping[str, Any], running: RunningResponse | None) -> Mapping[str, Any]:
    """Returns a response with the status that it has now."""
    begun = running is not None and running.events and response["status"] == "queued"
    return {**response, "status": "in_progress"} if begun else response


def _number(text: str) -> int:
    if text == "-1" or (text.isascii() and text.isdigit() and len(text) < 10):
        return int(text)
    raise invalid("starting_after must be the number of an event.", "starting_after")


async def _delete(_: Models, request: Request) -> Response:
    name = request.path_params["response_id"]
    await kept_of(request.scope).delete(tenant_of(request.scope), name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def _cancel(_: Models, request: Request) -> Response:
    row, kept = await _found(request), kept_of(request.scope)
    if not row.value.response["background"]:
        raise invalid("Only a response in the background can be cancelled.", "response_id")
    if (running := kept.running(row.id)) is not None:
        await kept.cancel(tenant_of(request.scope), running)
        row = await _found(request)
    return JSONResponse(row.value.response)


async def _input_items(_: Models, request: Request) -> Response:
    query = ListQuery.of(request.query_params, others=("include", "include[]"))
    row = await _found(request)
    items = row.value.items[::-1] if query.descending else row.value.items
    if query.after is not None:
        names = [item["id"] for item in items]
        if query.after not in names:
            raise missing("item", query.after, "after")
        items = items[names.index(query.after) + 1 :]
    page = items[: query.limit]
    listed = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
    return Response(msgspec.json.encode(listed), media_type=JSON)


ROUTES = (
    Route(
        "GET",
        "/v1/responses/{response_id}/input_items",
        "The input of a stored response",
        ForAllModels(_input_items),
        "in pages",
        answer=InputItems,
        statuses=FOUND,
    ),
    Route(
        "POST",
        "/v1/responses/{response_id}/cancel",
        "Cancel a response in the background",
        ForAllModels(_cancel),
        others=(JSON,),
        statuses=FOUND,
    ),
    Route(
        "GET",
        _ONE,
        "A stored response",
        ForAllModels(_retrieve),
        "`stream` and `starting_after`: its events",
        others=(JSON, EVENTS),
        statuses=FOUND,
    ),
    Route(
        "DELETE",
        _ONE,
        "Delete a response",
        ForAllModels(_delete),
        answer=DeletedResponse,
        statuses=FOUND,
    ),
)
