"""`python -m corepipe.probe`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.servers import PATIENCE_SECONDS, TINY, served, until


def probe(url: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corepipe.probe", url]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, **more
    )


def answer(url: str, **more: object) -> tuple[int, str]:
    """The exit code and what is wrong.  Who asks a probe asks again: it gives a server four seconds."""
    told = probe(url, **more)
    assert told.stdout == ""
    assert told.returncode == bool(told.stderr)
    return told.returncode, told.stderr


def test_a_server_that_takes_requests_is_healthy_and_no_proxy_is_asked() -> None:
    with served(TINY) as server:
        for path in ("/health", "/health/live", "/health/ready"):
            assert until(lambda path=path: answer(server.url + path) == (0, ""))
        assert until(lambda: "/nothing: 404 " in answer(f"{server.url}/nothing")[1])

        proxy = {"http_proxy": "http://127.0.0.1:9"}
        assert until(lambda: answer(f"{server.url}/health", env=proxy) == (0, ""))


def test_what_does_not_answer_is_not_healthy() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        for url in (f"http://127.0.0.1:{silent.getsockname()[1]}/health", "localhost:8000", "nonsense", ""):
            told = probe(url)
            assert told.returncode == 1
            assert "no answer" in told.stderr
            assert "Traceback" not in told.stderr


def test_it_needs_nothing_but_the_standard_library() -> None:
    source = Path(__file__).parent.parent / "corepipe" / "probe.py"
    code = f"import runpy; runpy.run_path({str(source)!r})"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code], check=False).returncode == 0
