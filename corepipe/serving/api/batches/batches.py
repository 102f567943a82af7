"""The routes of batches: create, list, describe and cancel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import (
    FOUND,
    STORING,
    ListQuery,
    Metadata,
    check_metadata,
    listing,
    missing,
    store_of,
)
from corepipe.serving.api.batches.files import LEAST_SECONDS, MOST_SECONDS
from corepipe.serving.api.batches.manager import MOST_WAITING, Batches
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.http.errors import ApiError, echo, invalid
from corepipe.serving.api.http.guard import read_body
from corepipe.serving.api.http.tenants import tenant_of
from corepipe.serving.api.routes.route import ForAllModels, Route
from corepipe.serving.stores.batches import BATCHES, BatchStatus, StoredBatch
from corepipe.serving.stores.table import Row

WINDOW_SECONDS = 86_400
"""The seconds of the completion window, 24h."""
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]


class BatchRequest(Body, frozen=True, kw_only=True):
    """The body of POST /v1/batches."""

    input_file_id: Annotated[str, Meta(description="a file of purpose `batch`: a request a line")]
    endpoint: Annotated[str, Meta(description="the path that all lines go to")]
    completion_window: Annotated[Literal["24h"], Meta(description="the time until the batch expires")]
    metadata: Metadata = None
    output_expires_after: Annotated[
        ExpiresAfter | None, Meta(description="how long the files with the results are kept")
    ] = None


class BatchCounts(Strict):
    total: int
    completed: int
    failed: int


class BatchError(Strict):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchErrors(Strict):
    object: Literal["list"]
    data: list[BatchError]


class BatchObject(Strict):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(Strict):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def _batches(request: Request) -> Batches:
    batches: Batches = request.app.state.batches
    return batches


def _shown(batches: Batches, row: Row[StoredBatch]) -> dict[str, Any]:
    """Returns a batch as the API shows it."""
    value, progress = row.value, batches.progress(row)
    errors = None
    if value.fault is not None:
        errors = {"object": "list", "data": [msgspec.to_builtins(value.fault)]}
    return {
        "id": row.id,
        "object": "batch",
        "endpoint": value.endpoint,
        "errors": errors,
        "input_file_id": value.input_file,
        "completion_window": "24h",
        "status": value.status,
        "output_file_id": value.shown_output,
        "error_file_id": value.shown_error,
        "created_at": row.created,
        "expires_at": value.expires_at,
        **{f"{name}_at": value.times.get(name) for name in _TIMES},
        "request_counts": {
            "total": progress.total,
            "completed": progress.completed,
            "failed": progress.failed,
        },
        "metadata": value.metadata,
    }


async def _create(_: Models, request: Request) -> Response:
    body = parse(await read_body(request.receive), BatchRequest)
    batches, tenant = _batches(request), tenant_of(request.scope)
    check_metadata(body.metadata)
    if body.endpoint not in batches.endpoints:
        message = f"endpoint must be one of {', '.join(batches.endpoints)}, not {echo(body.endpoint)}."
        raise invalid(message, "endpoint")
    batch = StoredBatch(
        endpoint=body.endpoint,
        input_file=body.input_file_id,
        status="validating",
        expires_at=WINDOW_SECONDS,
        times={},
        metadata=body.metadata,
        output_seconds=None if body.output_expires_after is None else body.output_expires_after.seconds,
    )
    try:
        row = await batches.add(tenant, batch)
    except OverflowError:
        message = f"This key has {MOST_WAITING} batches that have not ended."
        raise ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": "60"}) from None
    if row is None:
        raise invalid(f"No file found with id {echo(body.input_file_id)}.", "input_file_id", "not_found")
    return JSONResponse(_shown(batches, row))


async def _list(_: Models, request: Request) -> Response:
    query, batches = ListQuery.of(request.query_params), _batches(request)
    page = await query.page(store_of(request.scope), BATCHES, tenant_of(request.scope).salt)
    return JSONResponse(listing(page, lambda row: _shown(batches, row)))


async def _found(request: Request) -> Row[StoredBatch]:
    name, tenant = request.path_params["batch_id"], tenant_of(request.scope)
    row = await store_of(request.scope).run(lambda kept: kept.get(BATCHES, tenant.salt, name))
    if row is None:
        raise missing("batch", name, "batch_id")
    return row


async def _describe(_: Models, request: Request) -> Response:
    return JSONResponse(_shown(_batches(request), await _found(request)))


async def _cancel(_: Models, request: Request) -> Response:
    batches, row = _batches(request), await _found(request)
    if row.ended:
        message = f"The batch has ended: it is {row.value.status}."
        raise ApiError(409, message, code="batch_ended", param="batch_id")
    return JSONResponse(_shown(batches, await batches.cancel(row)))


_ALL = "/v1/batches"
_ENDED = {409: "The batch has ended."}

ROUTES = (
    Route(
        "POST",
        _ALL,
        "Answer the requests in a file",
        ForAllModels(_create),
        "while no other request is there: [batches](batches.md)",
        answer=BatchObject,
        request=BatchRequest,
        statuses=STORING,
    ),
    Route("GET", _ALL, "The batches of this key", ForAllModels(_list), answer=BatchList, statuses=FOUND),
    Route(
        "POST",
        "/v1/batches/{batch_id}/cancel",
        "Cancel a batch",
        ForAllModels(_cancel),
        "answers so far are kept",
        answer=BatchObject,
        statuses=FOUND | STORING | _ENDED,
    ),
    Route(
        "GET",
        "/v1/batches/{batch_id}",
        "Status and results of a batch",
        ForAllModels(_describe),
        answer=BatchObject,
        statuses=FOUND,
    ),
)
