"""Signals to a running server or all its processes: it reloads, logs its state, or ends."""

from __future__ import annotations

import contextlib
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import psutil
import pytest
import trustme

from tests.reliability.load_clients import PACE
from tests.reliability.test_drain import LONG, answering, rest
from tests.servers import END_SECONDS, TINY, Served, served, until


class Files:
    """A key file and a certificate that an operator replaces."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.keys, self.certificate = folder / "keys", folder / "both.pem"
        self.write("old")

    def write(self, key: str) -> None:
        issued = self.authority.issue_cert("127.0.0.1")
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        self._replace(self.keys, f"{key}\n".encode())
        self._replace(self.certificate, issued.private_key_pem.bytes() + chain)

    def spoil(self) -> None:
        self._replace(self.keys, b"sha256:no-digest\n")
        self._replace(self.certificate, b"no certificate")

    @property
    def flags(self) -> tuple[object, ...]:
        return ("--api-key-file", self.keys, "--ssl-certfile", self.certificate)

    @property
    def trusting(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        draft = path.with_suffix(".new")
        draft.touch(0o600)
        draft.write_bytes(content)
        draft.replace(path)


def presented(server: Served) -> str:
    """Returns the certificate that a new connection gets."""
    host, _, port = server.url.removeprefix("https://").partition(":")
    return ssl.get_server_certificate((host, int(port)))


def told(server: Served, words: str) -> list[str]:
    """Returns the lines of the log with these words."""
    return [line for line in server.stderr if words in line]


def key(name: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {name}"}


@contextlib.contextmanager
def secret_answer(server: Served, http: httpx.Client) -> Iterator[Iterator[str]]:
    """Begins an answer for a client with the old key."""
    name = http.get("/v1/models", headers=key("old")).json()["data"][0]["id"]
    asked = {"model": name, "prompt": "a", "max_tokens": 100, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=asked, headers=key("old")) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        yield lines


def test_sighup_reloads_keys_and_certificate_and_drops_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    with (
        served(TINY, *PACE, 60, *files.flags) as server,
        httpx.Client(base_url=server.url, verify=files.trusting, timeout=60) as http,
        httpx.Client(base_url=server.url, verify=files.trusting, timeout=60) as other,
    ):
        first = presented(server)
        with secret_answer(server, http) as lines:
            files.write("new")
            for process in (server.process, server.engine()):
                process.send_signal(signal.SIGHUP)
            assert until(lambda: len(told(server, " reloaded: ")) == 2)
            assert other.get("/v1/models", headers=key("new")).status_code == 200
            assert other.get("/v1/models", headers=key("old")).status_code == 401
            second = presented(server)
            assert second != first
            assert rest(lines)[-1] == "data: [DONE]"
        files.spoil()
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: len(told(server, "not reloaded")) == 2)
        assert f"--api-key-file {files.keys}" in told(server, "API keys not reloaded")[0]
        assert f"--ssl-certfile {files.certificate}" in told(server, "certificate not reloaded")[0]
        assert other.get("/v1/models", headers=key("new")).status_code == 200
        assert presented(server) == second
        assert server.end() == 0


def test_its_state_is_told_and_answers_go_on() -> None:
    """Either signal logs the state, any number of times."""
    with served(TINY, *PACE, LONG) as server, answering(server) as lines:
        engine = server.engine()
        assert until(lambda: server.metric("vllm:num_requests_running") == 1)
        for times, number in enumerate((signal.SIGUSR1, signal.SIGUSR2), 1):
            for process in psutil.Process(server.process.pid).children():
                process.send_signal(number)
            server.process.send_signal(number)
            running = "replica 0: 1 requests running, 0 waiting"
            assert until(lambda times=times, line=running: len(told(server, line)) == times)
            assert len(told(server, "state: ready")) == times
            line = told(server, "state: ready")[-1]
            assert f"engine {engine.pid}, lost before: none" in line
            assert re.search(
                "[12] HTTP requests under way", line
            )  # the task of the poll may not have ended yet
            assert "error" not in "".join(line for line, _ in zip(lines, range(6), strict=False))
            assert server.engine().pid == engine.pid


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_more_signals_end_it_at_once_and_without_a_traceback(number: signal.Signals) -> None:
    with served(TINY, *PACE, LONG, "--shutdown-timeout", 600) as server, answering(server) as lines:
        engine = server.engine()
        server.process.send_signal(number)
        assert until(lambda: server.get("/health/ready").status_code == 503)
        while server.process.poll() is None:
            server.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(0.02)
        assert server.process.wait(END_SECONDS) == 0
        assert "data: [DONE]" not in rest(lines)
        assert not psutil.pid_exists(engine.pid)
        assert told(server, "Traceback") == []


def test_a_renderer_of_chats_answers_no_signal_and_a_server_without_files_reloads_none() -> None:
    with served(TINY) as server:
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: told(server, "nothing to reload"))
        assert server.get("/health").status_code == 200
        name = server.model
        chat = {"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        first = server.post("/v1/chat/completions", json=chat)
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            for process in psutil.Process(server.process.pid).children():
                process.send_signal(number)
        again = server.post("/v1/chat/completions", json=chat)
        assert (first.status_code, again.status_code) == (200, 200)
