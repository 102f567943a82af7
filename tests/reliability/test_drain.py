"""The end of a server: it refuses new requests at once, completes open ones, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import httpx
import psutil

from tests.reliability.load_clients import PACE
from tests.servers import END_SECONDS, TINY, Served, engines, run, served, until

LONG = 600
"""The scale at which an answer takes a minute and a half, longer than any test follows it."""


def body(server: Served, tokens: int) -> dict[str, object]:
    return {"model": server.model, "prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}


@contextlib.contextmanager
def answering(server: Served, tokens: int = 200) -> Iterator[Iterator[str]]:
    """Begins an answer and yields the rest of its lines."""
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body(server, tokens), timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def rest(lines: Iterator[str]) -> list[str]:
    """Returns the remaining lines; the connection may end anywhere."""
    found = []
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        found.extend(line for line in lines if line)
    return found


def test_it_tells_that_it_drains() -> None:
    """A second signal ends it without waiting."""
    with served(TINY, *PACE, LONG, "--shutdown-timeout", 600) as server, answering(server) as lines:
        asked = body(server, 1)
        engine = server.engine()
        for process in (engine.pid, server.process.pid):  # to the whole group, as systemd does
            os.kill(process, signal.SIGTERM)
        assert until(lambda: server.get("/health/ready").status_code == 503)
        told = server.get("/health/ready")
        assert (told.json()["status"], told.headers["retry-after"]) == ("draining", "1")
        assert server.get("/health/live").status_code == 200
        refused = server.post("/v1/completions", json=asked)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert "data: [DONE]" not in rest(lines)
        assert server.process.wait(END_SECONDS) == 0
        assert not psutil.pid_exists(engine.pid)


def test_what_it_has_begun_comes_to_its_end() -> None:
    with served(TINY, *PACE, 20, "--shutdown-timeout", 600) as server, answering(server) as lines:
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        assert rest(lines)[-1] == "data: [DONE]"
        assert server.process.wait(END_SECONDS) == 0
        assert not psutil.pid_exists(engine.pid)


def test_what_outlasts_the_drain_is_told_and_cut() -> None:
    with served(TINY, *PACE, LONG, "--shutdown-timeout", 0.3) as server, answering(server) as lines:
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        said = rest(lines)
        assert "error" in said[-1]
        assert "data: [DONE]" not in said
        assert server.process.wait(END_SECONDS) == 0
        assert not psutil.pid_exists(engine.pid)


def test_a_server_that_is_killed_takes_its_engine_with_it() -> None:
    with served(TINY) as server:
        engine = server.engine()
        server.process.kill()
        assert until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


def test_readiness_at_each_moment() -> None:
    """Without an engine it is 503, with the reason and a Retry-After.  A signal ends the server even then."""
    with served(TINY, spare=True) as server:
        seen: set[tuple[int, str, str | None]] = set()
        assert until(lambda: lost(server) and told(server, seen) != 200)
        assert until(lambda: told(server, seen) == 200)
        assert seen <= {(503, "restarting", "1"), (200, "ready", None)}
        assert until(lambda: lost(server) and told(server, seen) != 200)
        assert server.end() == 0


def lost(server: Served) -> bool:
    """Kills all engines, also the spare one: the next one begins with its imports, so that the loss is
    visible for a moment.  A caller that misses it kills again."""
    for process in engines(server.process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return True


def told(server: Served, seen: set[tuple[int, str, str | None]]) -> int:
    """Returns the current status of readiness; adds its answer to `seen`."""
    probe = server.get("/health/ready")
    seen.add((probe.status_code, probe.json()["status"], probe.headers.get("retry-after")))
    return probe.status_code


def test_a_wait_that_is_no_wait_is_refused() -> None:
    refused = run("serve", TINY, "--port", 0, "--max-queue-seconds", 0)
    assert refused.returncode == 2
    assert "--max-queue-seconds" in refused.stderr
