"""Shared by the endpoints of stored things: the server's store, new ids, and lists in pages."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from starlette.datastructures import QueryParams
from starlette.types import Scope

from corepipe.serving.api.http.errors import ApiError, echo, invalid
from corepipe.serving.stores.store import Store
from corepipe.serving.stores.table import Page, Row, Table

MOST_LISTED = 100
"""The most entries of a page, as OpenAI's."""

Metadata = Annotated[
    Annotated[dict[str, str], Meta(max_length=16)] | None,
    Meta(description="up to 16 texts of up to 512 characters, by names of up to 64"),
]


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raises ApiError for a name or a text that is too long."""
    for name, text in (metadata or {}).items():
        if len(name) > 64 or len(text) > 512:
            raise invalid("metadata: a name has up to 64 characters, a text up to 512.", "metadata")


FOUND = {404: "This key has stored no such thing."}
"""The status of routes that look for something stored, for the OpenAPI document."""
STORING = {507: "The disk is full, or what this key stores takes all of its room."}
"""The status of routes that store something."""

S = TypeVar("S", bound=msgspec.Struct)


def store_of(scope: Scope) -> Store:
    """Returns the store of the server that answers a request."""
    store: Store = scope["app"].state.store
    return store


def new_id(prefix: str) -> str:
    """Returns an id that nobody can guess, such as "file-1f0c..."; `prefix` has its separator at its end."""
    return prefix + secrets.token_hex(16)


def missing(what: str, name: str, param: str) -> ApiError:
    """Returns error 404 for an id that this key has not stored.

    what: its kind; param: the name of the field or of the path's part.  The error is the same whether another
    key has stored it or nobody.
    """
    return ApiError(404, f"No {what} found with id {echo(name)}.", code="not_found", param=param)


class ListQuery(NamedTuple):
    """The part of a list that a client wants: `limit` entries after the id `after`."""

    after: str | None
    limit: int
    descending: bool

    @staticmethod
    def of(
        query: QueryParams,
        *,
        others: Iterable[str] = (),
        limit: int = 20,
        most: int = MOST_LISTED,
        order: str = "desc",
    ) -> ListQuery:
        """Reads a URL's parameters.  others: those that the route reads itself.  limit, order: the defaults.

        Raises ApiError for one that is wrong, unknown or there twice.
        """
        for name in query:
            if name not in ("after", "limit", "order", *others):
                raise invalid(f"Unsupported parameter: {echo(name)}.", name, "unsupported_parameter")
            if len(query.getlist(name)) > 1 and name not in others:
                raise invalid(f"{name} is there twice.", name)
        count = query.get("limit", str(limit))
        if not (count.isascii() and count.isdigit() and len(count) < 10 and 1 <= int(count) <= most):
            raise invalid(f"limit must be a number from 1 to {most}.", "limit")
        order = query.get("order", order)
        if order not in ("asc", "desc"):
            raise invalid("order must be asc or desc.", "order")
        return ListQuery(query.get("after"), int(count), order == "desc")

    async def page(
        self, store: Store, table: Table[S], tenant: str, where: Callable[[S], bool] = lambda _: True
    ) -> Page[S]:
        """Returns that part of a table, of the values that `where` accepts.  Raises ApiError."""
        try:
            return await store.run(lambda kept: kept.page(table, tenant, **self._asdict(), where=where))
        except LookupError:
            raise missing("entry", self.after or "", "after") from None


def listing(page: Page[Any], shown: Callable[[Row[Any]], dict[str, Any]]) -> dict[str, Any]:
    """Returns a page as OpenAI's lists have it; `shown` makes the object of a row, which has an `id`."""
    return listed([shown(row) for row in page.rows], more=page.more)


def listed(data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """Returns objects, which have ids, as a page of a list."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }
