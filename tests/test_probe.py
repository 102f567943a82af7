"""`python -m corepipe.probe`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.servers import TINY, served


def probe(url: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corepipe.probe", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


def test_a_server_that_takes_requests_is_healthy() -> None:
    with served(TINY) as server:
        for path in ("/health", "/health/live", "/health/ready"):
            told = probe(server.url + path)
            assert (told.returncode, told.stderr) == (0, "")
        wrong = probe(f"{server.url}/nothing")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "/nothing: 404 " in wrong.stderr


def test_a_proxy_is_not_asked() -> None:
    with served(TINY) as server:
        assert probe(f"{server.url}/health", env={"http_proxy": "http://127.0.0.1:9"}).returncode == 0


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
