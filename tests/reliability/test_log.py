"""A server whose log cannot be written, or is not read, serves like any other."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from tests.engine.test_stderr import Reader, full_pipe
from tests.servers import END_SECONDS, LOAD_SECONDS, TINY, command, engines, until


@contextlib.contextmanager
def serving(stderr: int | None) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs a server and yields it with its URL when it is ready.  stderr: None: closed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = command("serve", "--port", port, TINY)
    if stderr is None:
        started = ["sh", "-c", 'exec "$@" 2>&-', "sh", *started]
    process = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        url = f"http://127.0.0.1:{port}"
        assert until(lambda: ready(url) or process.poll() is not None, LOAD_SECONDS)
        assert process.poll() is None
        yield process, url
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait()


def ready(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready", timeout=30).status_code == 200
    return False


def serves(process: subprocess.Popen[bytes], url: str) -> None:
    """Checks that a server answers, reports its state, replaces its engine, and ends."""
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    asked = {"model": name, "prompt": "a", "max_tokens": 3}
    assert httpx.post(f"{url}/v1/completions", json=asked, timeout=60).status_code == 200
    process.send_signal(signal.SIGUSR1)
    engines(process.pid)[0].kill()
    restarted = 'corepipe_engine_restarts_total{reason="killed"} 1.0'
    assert until(lambda: restarted in httpx.get(f"{url}/metrics", timeout=30).text)
    assert until(lambda: ready(url), LOAD_SECONDS)
    assert httpx.post(f"{url}/v1/completions", json=asked, timeout=60).status_code == 200


def ended(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(END_SECONDS)


def test_a_pipe_that_nobody_reads_holds_up_nothing() -> None:
    with full_pipe() as (reader, writer, filled), serving(writer) as (process, url):
        serves(process, url)
        out = Reader(reader)
        assert until(lambda: b"the engine is back" in out.read)
        log = out.read[filled:].decode()
        assert f"{url}/v1" in log
        assert "state: ready" in log
        assert ended(process) == 0


def test_it_ends_although_nobody_has_read_its_log() -> None:
    with full_pipe() as (_, writer, _filled), serving(writer) as (process, _url):
        assert ended(process) == 0


def nowhere() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def unheard() -> int:
    """Makes a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("stderr", [nowhere, pytest.param(unheard, marks=pytest.mark.slow), None])
def test_a_log_that_cannot_be_written_is_no_reason_not_to_serve(stderr: Callable[[], int] | None) -> None:
    with contextlib.ExitStack() as ends:
        target = None
        if stderr is not None:
            target = stderr()
            ends.callback(os.close, target)
        process, url = ends.enter_context(serving(target))
        serves(process, url)
        assert ended(process) == 0
