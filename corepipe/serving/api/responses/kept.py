"""The responses that a server keeps: in its store, and those of them that are being computed."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI
from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from corepipe.serving.api.answering.generation import Generation
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import missing
from corepipe.serving.api.http.errors import ApiError, internal, invalid, overloaded
from corepipe.serving.api.http.tenants import Tenant, Tenants, tenant_of
from corepipe.serving.api.responses.items import MAX_ITEMS, with_ids
from corepipe.serving.api.responses.output import RESPONSE
from corepipe.serving.api.responses.running import Recorder, RunningResponse, split
from corepipe.serving.stores.errors import StoreError
from corepipe.serving.stores.responses import RESPONSES, StoredResponse
from corepipe.serving.stores.store import Store
from corepipe.serving.stores.table import Row

if TYPE_CHECKING:  # imports sqlite
    from corepipe.serving.stores.transaction import Transaction

Json = dict[str, Any]

MOST_RUNNING = 64
"""Responses in the background that a key may have that have not ended."""
MOST_REFERRED = 64
"""Responses that the references of one request may name."""
_USABLE = frozenset({"completed", "incomplete"})
"""The statuses of responses that others may continue."""

Computation = Callable[[RunningResponse], Awaitable[None]]
"""Computes a response: adds its events."""


def kept_of(scope: Scope) -> KeptResponses:
    """Returns the responses of the server that answers a request."""
    kept: KeptResponses = scope["app"].state.responses
    return kept


class KeptResponses:
    """The responses of the server `app`, which computes by `models` for `tenants`."""

    def __init__(self, app: FastAPI, models: Models, tenants: Tenants) -> None:
        self.app = app
        self.models = models
        self.tenants = tenants
        self._store: Store = app.state.store
        self._running: dict[str, RunningResponse] = {}

    def running(self, name: str) -> RunningResponse | None:
        """Returns a response that is being computed; the caller has looked up whose it is."""
        return self._running.get(name)

    async def find(self, tenant: Tenant, name: str, param: str = "response_id") -> Row[StoredResponse]:
        """Returns a response of this tenant.  Raises ApiError 404."""
        row = await self._store.run(lambda kept: kept.get(RESPONSES, tenant.salt, name))
        if row is None:
            raise missing("response", name, param)
        return row

    async def events(self, row: Row[StoredResponse]) -> list[bytes]:
        """Returns the events of a response that has ended."""

        def found(kept: Transaction) -> list[bytes]:
            entries = kept.entries(RESPONSES, row.tenant, row.id)
            return split(b"".join(zlib.decompress(data) for _, data in entries))

        return await self._store.run(found)

    async def before(self, tenant: Tenant, previous: str | None) -> list[Json]:
        """Returns all items up to the end of the previous response.  Raises ApiError."""
        if previous is None:
            return []
        param = "previous_response_id"
        value = (await self.find(tenant, previous, param)).value
        if value.response["status"] not in _USABLE:
            raise invalid(f"{param}: the response is {value.response['status']}.", param)
        return [*value.items, *value.response["output"]]

    async def resolved(self, tenant: Tenant, items: Sequence[Json]) -> list[Json]:
        """Returns items with those in place of references that these name: an item's name says which response
        it belongs to.  Raises ApiError."""
        named = {at: str(item.get("id")) for at, item in enumerate(items) if item["type"] == "item_reference"}
        responses = {at: RESPONSE + name.partition("_")[2].partition("_")[0] for at, name in named.items()}
        if len(set(responses.values())) > MOST_REFERRED:
            raise invalid(f"input: references to more than {MOST_REFERRED} responses.", "input")
        rows = {name: await self._referred(tenant, name) for name in set(responses.values())}
        found = list(items)
        for at, name in named.items():
            item = next((one for one in rows[responses[at]] if one.get("id") == name), None)
            if item is None:
                raise missing("item", name, f"input[{at}].id")
            found[at] = item
        return found

    async def _referred(self, tenant: Tenant, name: str) -> list[Json]:
        """Returns the items of a response; none if there is no such response."""
        row = await self._store.run(lambda kept: kept.get(RESPONSES, tenant.salt, name))
        return [] if row is None else [*row.value.response["output"], *row.value.items]

    async def keep(self, tenant: Tenant, response: Json, items: Sequence[Json]) -> None:
        """Keeps a response that has ended.  Raises StoreError."""
        value = StoredResponse(response, with_ids(items, response["id"]))
        await self._store.run(lambda kept: kept.insert(RESPONSES, tenant.salt, response["id"], value))

    async def begin(self, tenant: Tenant, value: StoredResponse, *, most: int | None) -> RunningResponse:
        """Keeps a response that is about to be computed.  most: how many this tenant may have that have not
        ended.  Raises ApiError if there are more, and StoreError."""
        name = value.response["id"]
        value = replace(value, items=with_ids(value.items, name), streamed=True)

        def added(kept: Transaction) -> Row[StoredResponse] | None:
            if most is not None and sum(one.tenant == tenant.salt for one in kept.unended(RESPONSES)) >= most:
                return None
            return kept.insert(RESPONSES, tenant.salt, name, value, ended=False)

        row = await self._store.run(added)
        if row is None:
            raise overloaded(f"This key has {most} responses in the background that have not ended.")
        running = self._running[name] = RunningResponse(row)
        return running

    async def record(
        self, tenant: Tenant, running: RunningResponse, generation: Generation, receive: Receive, send: Send
    ) -> None:
        """Sends a stream to its client, and keeps it; one that fails before it begins is not kept.

        A client that leaves has cancelled its response."""
        try:
            await generation.answer(receive, Recorder(running, send))
        except Exception:
            if not running.events:
                self._running.pop(running.row.id, None)
                await self._store.run(lambda kept: kept.delete(RESPONSES, tenant.salt, running.row.id))
            raise
        await self.finish(tenant, running)

    def start(self, tenant: Tenant, running: RunningResponse, compute: Computation) -> None:
        """Computes a response in the background."""
        running.task = asyncio.create_task(self._compute(tenant, running, compute))

    async def _compute(self, tenant: Tenant, running: RunningResponse, compute: Computation) -> None:
        try:
            await compute(running)
        except ApiError as error:
            running.failure = error
        except Exception:
            logging.getLogger(__name__).exception("response %s failed", running.row.id)
            running.failure = internal()
        await self.finish(tenant, running)

    async def finish(self, tenant: Tenant, running: RunningResponse) -> None:
        """Keeps how a response ended; one that the end of the server cuts goes on after the next start."""
        result, error = running.result, running.failure

        def ended(kept: Transaction) -> None:
            row = kept.get(RESPONSES, tenant.salt, running.row.id)
            if row is None:
                return
            response = result or _given_up(row.value.response, error)
            value = replace(row.value, response=response, request=None)
            kept.update(RESPONSES, tenant.salt, running.row.id, value, ended=True)
            events = zlib.compress(b"".join(running.events))
            kept.append(RESPONSES, tenant.salt, running.row.id, [events])

        try:
            if not self.models.draining or (result and result["status"] != "failed"):
                await self._store.run(ended)
        except StoreError:
            logging.getLogger(__name__).exception("response %s could not be kept", running.row.id)
        finally:
            self._running.pop(running.row.id, None)
            running.end()

    async def cancel(self, tenant: Tenant, running: RunningResponse) -> None:
        """Ends a response that is being computed in the background."""
        if running.task is not None:
            running.task.cancel()
            await asyncio.wait([running.task])
            await self.finish(tenant, running)

    async def delete(self, tenant: Tenant, name: str) -> None:
        """Removes a response.  Raises ApiError 404."""
        await self.find(tenant, name)
        if running := self._running.get(name):
            await self.cancel(tenant, running)
        await self._store.run(lambda kept: kept.delete(RESPONSES, tenant.salt, name))

    async def resume(
        self, computation: Callable[[KeptResponses, Row[StoredResponse], Tenant], Computation]
    ) -> None:
        """Goes on with the responses that the end of the server has cut."""
        for row in await self._store.run(lambda kept: kept.unended(RESPONSES)):
            running = self._running[row.id] = RunningResponse(row)
            tenant = self.tenants.of_salt(row.tenant)
            owner = Tenant(row.tenant) if tenant is None else tenant
            self.start(owner, running, _lost if tenant is None else computation(self, row, tenant))

    async def close(self) -> None:
        """Stops all that is computed in the background; it goes on after the next start."""
        tasks = [one.task for one in self._running.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _lost(_: RunningResponse) -> None:
    raise ApiError(500, "The key of this response is no longer one of the server's.")


def _given_up(response: Mapping[str, Any], error: ApiError | None) -> Json:
    """Returns a response that has no last event: it failed before its first, or was cancelled."""
    if error is None:
        return {**response, "status": "cancelled"}
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    return {**response, "status": "failed", "error": {"code": code, "message": error.message}}


def check_count(items: Sequence[Json]) -> None:
    """Raises ApiError for a conversation with too many items."""
    if len(items) > MAX_ITEMS:
        raise invalid(f"input: at most {MAX_ITEMS} items, with those of the previous response.", "input")


class WholeKeeper:
    """An ASGI `send` that keeps a whole response before it goes to its client.

    If it cannot be kept, it says so.
    """

    def __init__(self, scope: Scope, items: Sequence[Json], send: Send) -> None:
        self._scope = scope
        self._items = items
        self._send = send
        self._start: Message = {}

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = await self._kept(message["body"])
        length = (b"content-length", b"%d" % len(body))
        headers = [one for one in self._start["headers"] if one[0] != length[0]]
        await self._send({**self._start, "headers": [*headers, length]})
        await self._send({**message, "body": body})

    async def _kept(self, body: bytes) -> bytes:
        response: Json = msgspec.json.decode(body)
        try:
            await kept_of(self._scope).keep(tenant_of(self._scope), response, self._items)
        except StoreError:
            return msgspec.json.encode({**response, "store": False})
        return body
