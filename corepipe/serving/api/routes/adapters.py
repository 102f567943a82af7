"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, in vLLM's form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from corepipe.engine.lora import is_adapter_name
from corepipe.serving.api.answering.adapters import NOT_SERVED, ServedAdapters
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.bodies.reading import Body, parse
from corepipe.serving.api.bodies.values import Neutral
from corepipe.serving.api.http.errors import ApiError, echo, invalid
from corepipe.serving.api.http.guard import read_body
from corepipe.serving.api.http.ports import STATE_KEY, ServerPort
from corepipe.serving.api.routes.route import Audience, ForAllModels, Route

TEXT = "text/plain"


class LoadLoraAdapterRequest(Body, frozen=True, kw_only=True):
    """The body of POST /v1/load_lora_adapter."""

    lora_name: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="a name: letters, digits, `.`, `_` and `-`"),
    ]
    lora_path: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="a directory on the server; without an admin port, one below `--lora-dir`",
        ),
    ]
    load_inplace: Annotated[bool, Meta(description="replace the adapter that has the name")] = False
    model: Annotated[str | None, Meta(description="the model that it is for; default: the first")] = None


class UnloadLoraAdapterRequest(Body, frozen=True, kw_only=True):
    """The body of POST /v1/unload_lora_adapter."""

    neutral: ClassVar[Mapping[str, Neutral]] = {"lora_int_id": Neutral(type=int)}

    lora_name: Annotated[str, Meta(min_length=1, max_length=128, description="the adapter's name")]


async def _load(models: Models, request: Request) -> Response:
    body = parse(await read_body(request.receive), LoadLoraAdapterRequest)
    async with models.using(body.model, request.receive) as service:
        await _load_into(service, models, body, _port(request))
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def _load_into(
    service: Service, models: Models, body: LoadLoraAdapterRequest, port: ServerPort
) -> None:
    """Loads the adapter of a body into its model.  Raises ApiError."""
    service.require_model(body.model)
    adapters = _require_adapters(service)
    service.require_ready()
    name = body.lora_name
    if not is_adapter_name(name):
        message = "lora_name has letters, digits and . _ - and begins with one of the first two."
        raise invalid(message, "lora_name")
    other = models.named(name)
    if name in models.names or (other is not service and other.adapters and name in other.adapters):
        raise invalid(f"The model name {echo(name)} is taken already.", "lora_name")
    path = _allowed_path(body.lora_path, service.engine.lora_dir, port)
    await adapters.load(name, path, inplace=body.load_inplace)


async def _unload(models: Models, request: Request) -> Response:
    name = parse(await read_body(request.receive), UnloadLoraAdapterRequest).lora_name
    adapters = models.named(name).adapters
    if adapters is None or name not in adapters:
        if all(one.adapters is None for one in models.services):
            raise invalid(NOT_SERVED, code="unsupported")
        message = f"The lora adapter {echo(name)} cannot be found."
        raise ApiError(404, message, code="adapter_not_found", param="lora_name")
    await adapters.unload(name)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def _require_adapters(service: Service) -> ServedAdapters:
    if service.adapters is None:
        raise invalid(NOT_SERVED, code="unsupported")
    return service.adapters


def _port(request: Request) -> ServerPort:
    port: ServerPort = request.scope["state"].get(STATE_KEY, ServerPort.PUBLIC)
    return port


def _allowed_path(path: str, folder: Path | None, port: ServerPort) -> Path:
    """Returns the directory of an adapter.  Operators name any; users of the public port those below
    `folder`, links resolved.  Raises ApiError (403) for others."""
    try:
        there = ((folder or Path.cwd()) / path).resolve()
    except (ValueError, OSError, RuntimeError):  # a zero byte, a loop of links
        raise invalid(f"lora_path: {echo(path)} is no path.", "lora_path") from None
    if port is ServerPort.ADMIN or (folder is not None and there.is_relative_to(folder.resolve())):
        return there
    where = "needs --lora-dir, or --admin-port" if folder is None else "is below --lora-dir"
    message = f"A lora_path from this port {where}: the server's other files are not for its users."
    raise ApiError(403, message, code="path_not_allowed", param="lora_path")


ROUTES = (
    Route(
        "POST",
        "/v1/load_lora_adapter",
        "Loads a LoRA adapter",
        ForAllModels(_load),
        "its name is a model from then on; on the admin port if there is one",
        Audience.WATCHERS,
        request=LoadLoraAdapterRequest,
        others=(TEXT,),
    ),
    Route(
        "POST",
        "/v1/unload_lora_adapter",
        "Unloads a LoRA adapter",
        ForAllModels(_unload),
        "requests under way keep it until they end",
        Audience.WATCHERS,
        request=UnloadLoraAdapterRequest,
        others=(TEXT,),
    ),
)
