"""Makes the OpenAPI document from the types that parse requests and that tests hold answers to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corepipe.serving.api.answering.answers import Failure
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.bodies.client_settings import IGNORED, SETTINGS_OF
from corepipe.serving.api.bodies.messages import CHAT_OBJECTS, MESSAGES
from corepipe.serving.api.bodies.protocol import NESTED
from corepipe.serving.api.bodies.reading import Chosen, Nested
from corepipe.serving.api.bodies.values import Neutral
from corepipe.serving.api.routes.probes import Health
from corepipe.serving.api.routes.route import JSON, Audience, ForAllModels, Route

_ANYWHERE: dict[int, str] = {
    400: "The request is wrong; `param` names the field.",
    408: "Head or body did not come in time.",
    414: "The target is too long.",
    417: "An `Expect` that is not supported.",
    421: "`Host` names another host.",
    429: "The queue is full or a limit is reached; `Retry-After` says when to retry.",
    431: "The head is too large.",
    500: "The server's log says why.",
    503: "The engine is loading or has stopped, or there are too many connections.",
}
_WITH_KEYS: dict[int, str] = {401: "No API key, or not one of the server's."}
_WITH_MODEL: dict[int, str] = {404: "No such model."}
_WITH_BODY: dict[int, str] = {
    403: "A web page of an origin that is not allowed.",
    413: "The body is too large.",
    415: "The body is no JSON, or compressed.",
}


_IGNORED = {
    IGNORED: {
        "description": "Fields that were accepted without effect, separated by commas.",
        "schema": {"type": "string"},
    }
}


_FORM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "integer"},
    },
    "required": ["file", "purpose"],
}
"""The body of an upload."""


def document(
    routes: Sequence[Route],
    version: str,
    models: Sequence[str],
    *,
    keys: bool,
    strict: bool = False,
    several: bool = False,
) -> dict[str, Any]:
    """Returns the document of a server with these routes; `keys`: whether it has API keys.

    models: the served names; `several`: they belong to more than one model.  strict: fields without effect
    are refused.
    """
    types = [kind for one in routes for kind in (one.answer, one.request, *one.failures) if kind is not None]
    inner = {one.request: one.neutral for one in _nested({**CHAT_OBJECTS, **NESTED})}
    _, schemas = msgspec.json.schema_components(
        [*types, Failure, *inner], ref_template="#/components/schemas/{name}"
    )
    for request in [one.request for one in routes if one.request is not None]:
        schemas[request.__name__] = _strict(schemas[request.__name__], request.neutral, models)
    for kind, neutral in inner.items():
        schemas[kind.__name__] = _strict(schemas[kind.__name__], neutral, ())
    if not strict:
        _settle(schemas, several=several)
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, models, keys=keys, strict=strict)
    components: dict[str, Any] = {"schemas": schemas}
    if keys:
        components["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "named": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "corepipe", "version": version},
        "paths": paths,
        "components": components,
        "security": [{"key": []}, {"named": []}] if keys else [],
    }


def _nested(fields: Mapping[str, Nested | Chosen]) -> Iterator[Nested]:
    """Yields the objects within bodies whose types do not say by themselves what is refused."""
    for one in fields.values():
        if isinstance(one, Chosen):
            yield from one.kinds.values()
        elif not one.converted:
            yield one
            yield from _nested(one.nested)


def _operation(one: Route, models: Sequence[str], *, keys: bool, strict: bool) -> dict[str, Any]:
    statuses = {**_ANYWHERE, **(_WITH_BODY if one.method == "POST" else {})}
    if one.answer is Health:
        statuses[503] = "The server is not ready."
    if one.request is not None or "{model}" in one.path:
        statuses |= _WITH_MODEL
    statuses |= one.statuses
    if keys and not one.keyless:
        statuses |= _WITH_KEYS
    operation: dict[str, Any] = {
        "operationId": f"{one.method.lower()} {one.path}",
        "summary": one.summary,
        "responses": {"200": _success(one) | ({} if strict or one.request is None else {"headers": _IGNORED})}
        | {
            str(status): {"description": text, "content": _content(_failure(one, status))}
            for status, text in sorted(statuses.items())
        },
    }
    if one.keyless:
        operation["security"] = []
    if one.request is not None:
        operation["requestBody"] = {"required": True, "content": _body(one, models)}
    elif one.uploads:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    elif one.method == "POST":
        operation["requestBody"] = {"required": False, "content": _content({})}
    if names := re.findall(r"{(\w+)}", one.path):
        operation["parameters"] = [_in_path(name, models if name == "model" else ()) for name in names]
    return operation


def _in_path(name: str, examples: Sequence[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if examples:
        schema["examples"] = list(examples)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _body(one: Route, models: Sequence[str]) -> dict[str, Any]:
    """Returns the content of a request, with an example for each model if the body names one."""
    assert one.request is not None
    content = _content(_reference(one.request))
    if one.example:
        named = {name: {"model": name} for name in models if "model" in one.request.__struct_fields__}
        content[JSON]["examples"] = {
            name: {"value": {**model, **one.example}} for name, model in (named or {"any": {}}).items()
        }
    return content


def _failure(one: Route, status: int) -> dict[str, Any]:
    """Returns the schema of an error: probes and routes of other protocols have their own."""
    failure = _reference(Failure)
    if one.failures:
        return {"anyOf": [*map(_reference, one.failures)]}
    return {"anyOf": [_reference(Health), failure]} if one.answer is Health and status == 503 else failure


def _success(one: Route) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if one.answer is not None:
        answer = _reference(one.answer)
        content = _content({"type": "array", "items": answer} if one.listed else answer)
    return {"description": "Done.", "content": content | {kind: {} for kind in one.others}}


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {JSON: {"schema": schema}}


def _reference(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _strict(schema: dict[str, Any], neutral: Mapping[str, Neutral], models: Sequence[str]) -> dict[str, Any]:
    """Returns a request's schema as `reading.read` reads it: null for the default, no other names."""
    required = schema.get("required", [])
    named = {"model": {"enum": list(models)}} if models else {}
    properties = {
        name: one if name in required else _or_null(one)
        for name, one in (schema["properties"] | named).items()
    }
    if "messages" in properties:
        properties["messages"] = _with_items(properties["messages"])
    accepted = {name: _accepted(one) for name, one in neutral.items() if name not in properties}
    return schema | {"properties": properties | accepted, "additionalProperties": False}


def _settle(schemas: dict[str, dict[str, Any]], *, several: bool) -> None:
    """Adds the accepted settings of clients to the schemas."""
    for name, settings in SETTINGS_OF.items():
        if name in schemas:
            taken = {field: row.takes for field, row in settings.items() if row.read_as != field}
            schemas[name] = _settled(schemas[name], taken, several=several)


def _settled(schema: dict[str, Any], taken: Mapping[str, Neutral], *, several: bool) -> dict[str, Any]:
    """Returns a schema with the accepted settings; with one served model, `model` becomes optional."""
    known = schema["properties"]
    others = {name: _accepted(one) for name, one in taken.items() if name not in known}
    more = {name: {"anyOf": [known[name], _accepted(one)]} for name, one in taken.items() if name in known}
    settled = schema | {"properties": known | others | more}
    if not several and "model" in settled.get("required", ()):
        settled["required"] = [name for name in settled["required"] if name != "model"]
        settled["properties"]["model"] = _or_null(settled["properties"]["model"])
    return settled


def _with_items(messages: dict[str, Any]) -> dict[str, Any]:
    """Returns `messages` with the schema of its items, which `messages.plain_messages` checks."""
    kinds = [dict(one) for one in messages.get("anyOf", [messages])]
    items = [_reference(kind) for kind in dict.fromkeys(one.request for one in MESSAGES.kinds.values())]
    for one in kinds:
        if one.get("type") == "array" and one.get("items") == {"type": "object"}:
            one |= {"items": {"anyOf": items}, "minItems": 1}
    return kinds[0] if len(kinds) == 1 else messages | {"anyOf": kinds}


def _accepted(neutral: Neutral) -> dict[str, Any]:
    values = {"enum": [None, *neutral.values]}
    if neutral.type is None:
        return values
    return {"anyOf": [values, msgspec.json.schema(neutral.type)]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = schema.get("anyOf", [])
    if {"type": "null"} in kinds:
        return schema
    outer = {key: schema[key] for key in ("description", "default") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in outer}
    return outer | {"anyOf": [*(kinds or [inner]), {"type": "null"}]}


class ApiDocument:
    """The document of an application with these routes; made at the first request, since it takes half as
    long as all the rest of the application."""

    def __init__(self, routes: Sequence[Route], models: Models, *, keys: bool) -> None:
        self._routes = routes
        self._models = models
        self._keys = keys

    @cached_property
    def body(self) -> bytes:
        """The document as JSON."""
        (version, _, strict), several = self._models.facts, self._models.several
        names = () if self._models.on_demand else self._models.names
        described = document(self._routes, version, names, keys=self._keys, strict=strict, several=several)
        return msgspec.json.encode(described)


async def _described(_: Models, request: Request) -> Response:
    described: ApiDocument = request.app.state.document
    return Response(await asyncio.to_thread(lambda: described.body), media_type="application/json")


ROUTE = Route(
    "GET",
    "/openapi.json",
    "This document",
    ForAllModels(_described),
    "these routes, for programs",
    Audience.ALL,
    others=(JSON,),
)
"""The route of the document; each application has its own, as `state.document`."""
