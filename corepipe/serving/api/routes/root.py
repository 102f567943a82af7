"""GET /: a short page for browsers that open the server's address, and the same facts as JSON."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from corepipe.serving.api.answering.answers import Strict
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.http.errors import origin_of
from corepipe.serving.api.routes import openapi
from corepipe.serving.api.routes.missing import BASE
from corepipe.serving.api.routes.route import ForAllModels, Route

_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>corepipe</title>
<h1>corepipe {version}</h1>
<p>A server of the OpenAI API. The base URL of clients is <code>{base}</code>.
<p><a href="/v1/models">Models</a>, <a href="/health">health</a>, <a href="/metrics">metrics</a>,
<a href="/openapi.json">routes</a>. If the server has API keys, all but the health need one.
"""


class Root(Strict):
    """The answer to GET /; `base_url`: the base URL for OpenAI's clients."""

    name: str
    version: str
    base_url: str
    routes: str


async def _root(models: Models, request: Request) -> Response:
    version, base = models.first.version, origin_of(request) + BASE
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_PAGE.format(version=escape(version), base=escape(base)))
    return JSONResponse(
        {"name": "corepipe", "version": version, "base_url": base, "routes": openapi.ROUTE.path}
    )


ROUTE = Route(
    "GET",
    "/",
    "Where the API is",
    ForAllModels(_root),
    "the base URL of clients, as a page for browsers, else as JSON",
    answer=Root,
    others=("text/html",),
    keyless=True,
    counted=False,
)
