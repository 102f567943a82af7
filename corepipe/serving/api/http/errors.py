"""Every failure in its API's shape, mostly OpenAI's, with bounded text."""

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
    """A request that ends with `status`; `param` names the field at fault, `code` is for programs.

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
        """The JSON object to send, in the form of the API that the path is of."""
        form = next((form for prefix, form in _FORMS if f"{path}/".startswith(prefix)), _openai)
        return msgspec.json.encode(form(self))

    def response(self, path: str) -> Response:
        """The answer to a request of that path."""
        return Response(self.body(path), self.status, self.headers, media_type="application/json")


ErrorForm = Callable[[ApiError], dict[str, Any]]


def _openai(error: ApiError) -> dict[str, Any]:
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"error": fields}


def _anthropic(error: ApiError) -> dict[str, Any]:
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(error.status, kind)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _open_inference(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


_FORMS: tuple[tuple[str, ErrorForm], ...] = (
    ("/v1/messages/", _anthropic),
    ("/v2/rerank/", _openai),
    ("/v2/embed/", _openai),
    ("/v2/", _open_inference),
)
"""By how paths begin; the first counts.  `/v2` is the Open Inference Protocol's, but for Cohere's routes."""


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the field `param` is wrong."""
    return ApiError(400, message, code=code, param=param)


def overloaded(message: str, retry_seconds: int | None = None) -> ApiError:
    """429: the queue is full; a retry helps, best after so many seconds."""
    headers = {"retry-after": str(retry_seconds or RETRY_SECONDS)}
    return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


def expired(message: str) -> ApiError:
    """504: it has waited for as long as the server lets anything wait."""
    return ApiError(504, message, code="queue_timeout", headers={"retry-after": str(RETRY_SECONDS)})


def unavailable(message: str) -> ApiError:
    """503: no engine to ask; a retry may help."""
    return ApiError(503, message, code="service_unavailable", headers={"retry-after": str(RETRY_SECONDS)})


def overflowed(message: str) -> ApiError:
    """500: the model computed no numbers; it would again."""
    return ApiError(500, message, code="logits_overflow")


def unconstrained(message: str) -> ApiError:
    """500: the answer could not go on as its grammar wants; with other words, or another grammar, it may."""
    return ApiError(500, message, code="constraint_failed")


def contradicted(message: str) -> ApiError:
    """400: two constraints of the request leave nothing to draw, as shows while the answer is made."""
    return invalid(message, "allowed_token_ids", "constraint_failed")


def internal() -> ApiError:
    """500, without a word of what went wrong: that is for the log."""
    return ApiError(500, "The server failed to answer this request; its log says why.", code="internal_error")


def echo(value: object) -> str:
    """A client's value, quoted, safe to put into a message: control characters escaped, at most 200 long."""
    return _cut(_BOUNDED.repr(value), MAX_ECHO)


async def send_error(scope: Scope, send: Send, error: ApiError) -> None:
    """Answer a request with `error` from a place that has no response object, such as a guard."""
    body = error.body(scope["path"])
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(key.encode("latin-1"), value.encode("latin-1")) for key, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


MissingRouteAnswer = Callable[[str, str, str], ApiError]
"""What is answered where no route is: of a method, a path and the server's origin."""


def install(app: FastAPI, missing: MissingRouteAnswer) -> None:
    """Make `app` answer every refusal in this shape, its framework's own included."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(HTTPException, partial(_on_http_exception, missing))


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.scope["path"])


async def _on_user_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return invalid(error.message, error.param).response(request.scope["path"])


async def _on_http_exception(missing: MissingRouteAnswer, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code in (404, 405):
        return missing(request.method, path, origin_of(request)).response(path)
    return ApiError(error.status_code, str(error.detail), headers=error.headers).response(path)


def wrong_method(method: str, path: str, allowed: str) -> ApiError:
    """405: the route has another method."""
    message = f"Method not allowed: {method} {echo(path)}. Use {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})


def origin_of(request: Request) -> str:
    """Scheme, host and port of the server, as the client wrote them."""
    return f"{request.url.scheme}://{request.url.netloc}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def on_the_wire(error: ApiError) -> bytes:
    """A whole answer in HTTP/1.1, the connection's last, for a request that no application has seen."""
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
