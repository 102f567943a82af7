"""Every failure in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`, with bounded text."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from corepipe.errors import UserError

MAX_ECHO = 200
MAX_MESSAGE = 500
RETRY_SECONDS = 1

_BOUNDED = reprlib.Repr()
_BOUNDED.maxstring = 2 * MAX_ECHO
_BOUNDED.maxlevel = _BOUNDED.maxlist = _BOUNDED.maxdict = 20

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

    def body(self) -> bytes:
        """The JSON object to send."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": fields})

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


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


def internal() -> ApiError:
    """500, without a word of what went wrong: that is for the log."""
    return ApiError(500, "The server failed to answer this request; its log says why.", code="internal_error")


def echo(value: object) -> str:
    """A client's value, quoted, safe to put into a message: control characters escaped, at most 200 long."""
    return _cut(_BOUNDED.repr(value), MAX_ECHO)


async def send_error(send: Send, error: ApiError) -> None:
    """Answer with `error` from a place that has no response object, such as a guard."""
    body = error.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(key.encode("latin-1"), value.encode("latin-1")) for key, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def install(app: FastAPI, instead: Mapping[str, str]) -> None:
    """Make `app` answer every refusal in this shape, its framework's own included.

    instead: routes that do what others' routes do which are not there.
    """
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(UserError, _on_user_error)
    app.add_exception_handler(HTTPException, partial(_on_http_exception, instead))
    app.add_exception_handler(RequestValidationError, _on_validation_error)


async def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_user_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, UserError)
    return invalid(error.message, error.param).response()


async def _on_http_exception(instead: Mapping[str, str], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    where = f"{request.method} {echo(path)}"
    other = next((to for missing, to in instead.items() if f"{path}/".startswith(f"{missing}/")), None)
    hint = f" Use {other} instead." if other else ""
    message = {404: f"Unknown route: {where}.{hint}", 405: f"Method not allowed: {where}."}.get(
        error.status_code, str(error.detail)
    )
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:])
    return invalid(f"{param}: {first['msg']}", param).response()


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
