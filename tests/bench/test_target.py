from __future__ import annotations

import asyncio

import pytest

from corepipe.bench.target import Http, Target, find
from corepipe.errors import UserError
from tests.bench.stub import running


@pytest.mark.parametrize(
    ("given", "url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("localhost:9", "http://localhost:9", "localhost", 9, ""),
        ("http://x/v1/chat/completions", "http://x", "x", 80, ""),
        ("http://x/models/a/v1", "http://x/models/a", "x", 80, "/models/a"),
        ("https://api.example.org/v1", "https://api.example.org", "api.example.org", 443, ""),
        ("http://[::1]:8000", "http://[::1]:8000", "::1", 8000, ""),
    ],
)
def test_urls(given: str, url: str, host: str, port: int, prefix: str) -> None:
    target = Target.parse(given)
    assert (target.url, target.address.host, target.address.port, target.prefix) == (url, host, port, prefix)
    assert (target.address.tls is not None) == given.startswith("https")


@pytest.mark.parametrize("url", ["", "http://", "ftp://x", "http://x:port", "http://x?a=1", ":8000"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UserError, match="http://HOST:PORT"):
        Target.parse(url)


def found(url: str, model: str | None = None, key: str | None = None, wait: float = 0.0) -> str:
    async def main() -> str:
        http = Http(Target.parse(url), key)
        try:
            return (await find(http, model, wait)).model
        finally:
            http.pool.close()

    return asyncio.run(main())


def test_a_server_is_looked_at() -> None:
    with running(key="secret") as url:
        assert found(url, key="secret") == "stub"
        with pytest.raises(UserError, match=r"401: no such key.*--api-key"):
            found(url)
        with pytest.raises(UserError, match="--model other: not served here; there is stub"):
            found(url, "other", "secret")


def test_nobody_there() -> None:
    with pytest.raises(UserError, match=r"no server answers there .*is it up\? --wait"):
        found("http://127.0.0.1:1", wait=0.1)
