"""Errors for paths without a route: they name the route that was probably meant, or one to use instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from corepipe.serving.api.http.errors import ApiError, echo, wrong_method
from corepipe.serving.api.routes.route import Route, best_match

BASE = "/v1"
"""The path of the base URL for OpenAI's clients; they add the rest of a route themselves."""
_SHARED = "The shared memory extension is not supported: send tensors in the request."
_GENERATE = "The generate extension is not supported: use /v1/completions or /v1/chat/completions."
_TRACE = "The trace extension is not supported: --otlp-traces-endpoint sends traces."
_UNSUPPORTED: Mapping[str, str] = {
    "/v1/audio": "Speech is not supported: models here read texts and images, and write texts.",
    "/v1/images": "Making images is not supported: models here write texts.",
    "/v2/repository/models": "Models are loaded and unloaded on the admin port (--admin-port) alone.",
    "/v2/systemsharedmemory": _SHARED,
    "/v2/cudasharedmemory": _SHARED,
    "/v2/trace": _TRACE,
    "/v2/logging": "The logging extension is not supported.",
}
"""APIs that clients may know from other servers, by the beginning of their paths."""
_OF_MODELS: Mapping[str, str] = {
    "config": "The model configuration extension is not supported: GET /v2/models/NAME has the metadata.",
    "stats": "The statistics extension is not supported: GET /metrics has the figures.",
    "trace/setting": _TRACE,
    "generate": _GENERATE,
    "generate_stream": _GENERATE,
}
"""Extensions of the Open Inference Protocol, by the end of a model's path."""


class MissingRoutes:
    """Makes the errors for requests that no route answers.

    routes: the existing routes.  instead: paths of other servers, and the paths here that do the same.
    """

    def __init__(self, routes: Sequence[Route], instead: Mapping[str, str]) -> None:
        self._routes = routes
        self._instead = instead

    def error(self, method: str, path: str, origin: str) -> ApiError:
        """Returns error 404, or 405 if the path exists with another method.

        origin: scheme, host and port, as the client wrote them.
        """
        there = best_match(self._routes, path)
        if there is not None and not unsupported_at(path):
            methods = [one.method for one in self._routes if one.path == there.path]
            return wrong_method(method, path, ", ".join(methods))
        message = f"Unknown route: {method} {echo(path)}. {self._hint(path, origin)}"
        return ApiError(404, message, code="not_found")

    def _hint(self, path: str, origin: str) -> str:
        if said := unsupported_at(path):
            return said
        meant = next(self._meant([part for part in path.split("/") if part]), None)
        if meant is None:
            return "GET /openapi.json lists the routes."
        if meant == BASE:
            return f"This is the base URL of clients; GET {BASE}/models lists the models."
        if instead := self._instead.get(meant):
            return f"Use {instead} instead."
        base = f": the base URL of clients is {origin}{BASE}" if meant.startswith(f"{BASE}/") else ""
        return f"Use {meant}{base}."

    def _meant(self, parts: Sequence[str]) -> Iterator[str]:
        """Yields known paths that end this one, the longest first: a wrong base URL adds parts in front."""
        if [f"/{part}" for part in parts[-1:]] == [BASE]:
            yield BASE
        for at in range(len(parts)):
            end = "/" + "/".join(parts[at:])
            for path in (end, BASE + end) if at == 0 else (BASE + end, end):
                instead = next((one for one in self._instead if f"{path}/".startswith(f"{one}/")), None)
                if instead or any(one.matches(path) for one in self._routes):
                    yield instead or path


def unsupported_at(path: str) -> str:
    """Returns the message for an API that is not supported; else empty."""
    for prefix, said in _UNSUPPORTED.items():
        if f"{path}/".startswith(f"{prefix}/"):
            return said
    if not path.startswith("/v2/models/"):
        return ""
    return next((said for end, said in _OF_MODELS.items() if path.endswith(f"/{end}")), "")
