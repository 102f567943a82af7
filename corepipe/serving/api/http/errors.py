"""Errors in the form of the API that was called, mostly OpenAI's, with bounded text."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope, Send

from corepipe.errors import UserError
from corepipe.serving.stores.errors import StoreError, StoreFullError

MAX_ECHO = 200
MAX_MESSAGE = 500
RETRY_SECONDS = 1

_BOUNDED = reprlib.Repr()
_BOUNDED.maxstring = 2 * MAX_ECHO
_BOUNDED.maxlevel = _BOUNDED.maxlist = _BOUNDED.maxdict = 20

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error that ends a request with `status`; `param` names the field at fault, `code` is for programs.

    A message is cut at `longest` characters.
    """

    longest = MAX_MESSAGE

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _cut(message, self.longest)
        self.code = code
        self.param = None if param is None else _cut(param, MAX_ECHO)
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, default)

    def body(self, path: str = "") -> bytes:
        """Returns the JSON object to send, in the form of the API that the path belongs to."""
        form = next((form for prefix, form in _FORMS if f"{path}/".startswith(prefix)), _openai)
        return msgspec.json.encode(form(self))

    def response(self, path: str) -> Response:
        """Returns the response to a request for that path."""
        return Response(self.body(path), self.status, self.headers, media_type="application/json")


ErrorForm = Callable[[ApiError], dict[str, Any]]


def _openai(error: ApiError) -> dict[str, Any]:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": fields}


_THREADLESS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""Makes Anthropic's SDK send the conversation, where it asked for one that the server keeps."""


def _anthropic(error: ApiError) -> dict[str, Any]:
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(error.status, kind)
    long = error.code == "context_length_exceeded"  # agents know by these words that they must shorten it
    message = f"prompt is too long: {error.message}" if long else error.message
    fields: dict[str, Any] = {"type": kind, "message": message}
    if error.param == "thread":
        fields["details"] = _THREADLESS
    return {"type": "error", "error": fields}


def _open_inference(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


_FORMS: tuple[tuple[str, ErrorForm], ...] = (
    ("/v1/messages/", _anthropic),
    ("/v2/rerank/", _openai),
    ("/v2/embed/", _openai),
    ("/v2/", _open_inference),
)
"""Error forms by path prefix, first match; `/v2` is the Open Inference Protocol's, except Cohere's routes."""


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Returns error 400: the field `param` is wrong."""
    return ApiError(400, message, code=code, param=param)


def overloaded(message: str, retry_seconds: int | None = None) -> ApiError:
    """Returns error 429: the queue is full; a retry helps, best after `retry_seconds`."""
    headers = {"retry-after": str(retry_seconds or RETRY_SECONDS)}
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def expired(message: str) -> ApiError:
    """Returns error 504: the request waited in the queue until the server's time limit."""
    return ApiError(504, message, code="queue_timeout", headers={"retry-after": str(RETRY_SECONDS)})


def unavailable(message: str, retry_seconds: int = RETRY_SECONDS) -> ApiError:
    """Returns error 503: no engine is ready; a retry may help, best after `retry_seconds`."""
    return ApiError(503, message, code="service_unavailable", headers={"retry-after": str(retry_seconds)})


def overflowed(message: str) -> ApiError:
    """Returns error 500: the model computed infinity or NaN; a retry would give the same."""
    return ApiError(500, message, code="logits_overflow")


def unconstrained(message: str) -> ApiError:
    """Returns error 500: no next token fits the grammar; another prompt or another grammar may work."""
    return ApiError(500, message, code="constraint_failed")


def contradicted(message: str) -> ApiError:
    """Returns error 400: two constraints of the request allow no common token, found while generating."""
    return invalid(message, "allowed_token_ids", "constraint_failed")


def unstored(error: StoreError) -> ApiError:
    """Returns error 507 where a store is full, and 500 where it fails."""
    if isinstance(error, StoreFullError):
        return ApiError(507, error.message, code="store_full")
    return ApiError(500, error.message, code="store_failed")


def internal() -> ApiError:
    """Returns error 500 without details, which are in the log."""
    return ApiError(500, "The server failed to answer this request; its log says why.", code="internal_error")


def echo(value: object) -> str:
    """Returns a client's value for a message: quoted, control characters escaped, at most 200 long."""
    return _cut(_BOUNDED.repr(value), MAX_ECHO)


async def send_error(scope: Scope, send: Send, error: ApiError) -> None:
    """Sends `error` from code that has no response object, such as a middleware."""
    body = error.body(scope["path"])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(key.encode("latin-1"), value.encode("latin-1")) for key, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


MissingRouteAnswer = Callable[[str, str, str], ApiError]
"""Makes the error for a path without a route, from a method, a path and the server's origin."""


def install(app: FastAPI, missing: MissingRouteAnswer) -> None:
    """Makes `app` send every error in this form, those of its framework included."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(StoreError, _on_store_error)
    app.add_exception_handler(HTTPException, partial(_on_http_exception, missing))


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.scope["path"])


async def _on_user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return invalid(error.message, error.param).response(request.scope["path"])


async def _on_store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreError)
    return unstored(error).response(request.scope["path"])


async def _on_http_exception(missing: MissingRouteAnswer, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code in (404, 405):
        return missing(request.method, path, origin_of(request)).response(path)
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response(path)


def wrong_method(method: str, path: str, allowed: str) -> ApiError:
    """Returns error 405: the route has another method."""
    message = f"Method not allowed: {method} {echo(path)}. Use {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})


def origin_of(request: Request) -> str:
    """Returns scheme, host and port of the server, as the client wrote them."""
    return f"{request.url.scheme}://{request.url.netloc}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def on_the_wire(error: ApiError) -> bytes:
    """Returns a whole HTTP/1.1 response, the last of its connection, for a request refused before ASGI."""
    body = error.body()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    status = HTTPStatus(error.status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode() + body
