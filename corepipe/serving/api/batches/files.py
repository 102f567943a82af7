"""The routes of files: upload, list, describe, read and delete."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import (
    FOUND,
    STORING,
    ListQuery,
    listing,
    missing,
    new_id,
    store_of,
)
from corepipe.serving.api.http.errors import ApiError, echo, invalid
from corepipe.serving.api.http.tenants import tenant_of
from corepipe.serving.api.routes.route import ForAllModels, Route
from corepipe.serving.stores.files import FILES, GrowingFile, StoredFile
from corepipe.serving.stores.table import Row

PURPOSES = ("assistants", "batch", "evals", "user_data", "vision")
"""Purposes of uploads.  Batches read files of "batch"; the others are kept for their clients alone."""
LEAST_SECONDS, MOST_SECONDS = 3600, 30 * 86_400
"""The bounds of `expires_after`, as OpenAI's."""
MOST_LISTED = 10_000
OTHER = "application/octet-stream"


class FileObject(Strict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["processed"]


class FileDeleted(Strict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class FileList(Strict):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def shown(row: Row[StoredFile]) -> dict[str, Any]:
    """Returns a file as the API shows it."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.value.bytes,
        "created_at": row.created,
        "expires_at": row.expires,
        "filename": row.value.filename,
        "purpose": row.value.purpose,
        "status": "processed",
    }


async def _upload(_: Models, request: Request) -> Response:
    from corepipe.serving.api.batches.form import UploadForm  # noqa: PLC0415 -- who uploads nothing does without

    store, tenant = store_of(request.scope), tenant_of(request.scope)
    form = UploadForm(request.headers["content-type"])
    file = await GrowingFile.begin(store, tenant.salt, new_id("file-"), StoredFile("", ""))
    try:
        async for chunk in request.stream():
            if found := form.feed(chunk):
                await file.write(found)
        name, seconds = form.finish(), _seconds(form.fields)
        row = await file.finish(name, _purpose(form.fields), seconds)
    except ClientDisconnect:
        await file.drop()
        raise invalid("The client left before the end of the body.") from None
    except BaseException:
        await file.drop()
        raise
    return JSONResponse(shown(row))


def _purpose(fields: dict[str, str]) -> str:
    purpose = fields.get("purpose")
    if purpose is None:
        raise invalid("Missing required parameter: 'purpose'.", "purpose", "missing_required_parameter")
    if purpose not in PURPOSES:
        raise invalid(f"Invalid 'purpose': {echo(purpose)}; one of {', '.join(PURPOSES)}.", "purpose")
    return purpose


def _seconds(fields: dict[str, str]) -> int | None:
    """Returns the seconds of `expires_after`, if the form has it."""
    for name in fields:
        if name not in ("purpose", "expires_after[anchor]", "expires_after[seconds]"):
            raise invalid(f"Unsupported parameter: {echo(name)}.", name, "unsupported_parameter")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid("expires_after[anchor] must be created_at.", "expires_after[anchor]")
    if not (seconds and seconds.isascii() and seconds.isdigit() and len(seconds) < 10):
        raise invalid("expires_after[seconds] must be a number.", "expires_after[seconds]")
    if not LEAST_SECONDS <= int(seconds) <= MOST_SECONDS:
        message = f"expires_after[seconds] must be {LEAST_SECONDS} to {MOST_SECONDS}."
        raise invalid(message, "expires_after[seconds]")
    return int(seconds)


async def _list(_: Models, request: Request) -> Response:
    query = ListQuery.of(request.query_params, others=("purpose",), limit=MOST_LISTED, most=MOST_LISTED)
    purpose, tenant = request.query_params.get("purpose"), tenant_of(request.scope)

    def is_listed(file: StoredFile) -> bool:
        return file.status == "processed" and purpose in (None, file.purpose)

    page = await query.page(store_of(request.scope), FILES, tenant.salt, is_listed)
    return JSONResponse(listing(page, shown))


async def _found(request: Request) -> Row[StoredFile]:
    """Returns the file that the path names.  Raises ApiError (404)."""
    name, tenant = request.path_params["file_id"], tenant_of(request.scope)
    row = await store_of(request.scope).run(lambda kept: kept.get(FILES, tenant.salt, name))
    if row is None or row.value.status != "processed":
        raise missing("file", name, "file_id")
    return row


async def _describe(_: Models, request: Request) -> Response:
    return JSONResponse(shown(await _found(request)))


async def _content(_: Models, request: Request) -> Response:
    row = await _found(request)
    path = (await store_of(request.scope).folder()).file(row.id)
    named = f"attachment; filename*=UTF-8''{quote(row.value.filename, safe='')}"
    return FileResponse(path, headers={"content-disposition": named}, media_type=OTHER)


async def _delete(_: Models, request: Request) -> Response:
    row = await _found(request)
    if not row.ended:
        message = f"The file {row.id} is the input of a batch that has not ended: cancel the batch first."
        raise ApiError(409, message, code="file_in_use", param="file_id")
    await store_of(request.scope).run(lambda kept: kept.delete(FILES, row.tenant, row.id))
    return JSONResponse({"id": row.id, "object": "file", "deleted": True})


_ALL, _ONE = "/v1/files", "/v1/files/{file_id}"
_IN_USE = {409: "The file is the input of a batch that has not ended."}

ROUTES = (
    Route(
        "POST",
        _ALL,
        "Upload a file",
        ForAllModels(_upload),
        "a form with `file`, `purpose` and `expires_after`: [batches](batches.md)",
        answer=FileObject,
        statuses=STORING,
        uploads=True,
    ),
    Route(
        "GET", _ALL, "The files of this key", ForAllModels(_list), "in pages", answer=FileList, statuses=FOUND
    ),
    Route(
        "GET",
        "/v1/files/{file_id}/content",
        "A file's bytes",
        ForAllModels(_content),
        others=(OTHER,),
        statuses=FOUND,
    ),
    Route("GET", _ONE, "About a file", ForAllModels(_describe), answer=FileObject, statuses=FOUND),
    Route(
        "DELETE", _ONE, "Delete a file", ForAllModels(_delete), answer=FileDeleted, statuses=FOUND | _IN_USE
    ),
)
