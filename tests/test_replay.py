"""Cassettes over real processes: real clients, another instruction set, signals, several servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import psutil
import pytest

from corepipe.cli.flags.settings import configured
from corepipe.errors import UserError
from corepipe.kernels import native
from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes
from corepipe.serving.config import ServerConfig
from tests.servers import PATIENCE_SECONDS, TINY, Served, run, served, until

NAMED = ("--served-model-name", "tiny", "--threads", 1)
MESSAGES = [{"role": "user", "content": "Hello there.\nHow are you?"}]
CASSETTE = """\
{"cassette": 1, "request": {"method": "POST", "path": "/v1/completions", "body": {"model": "tiny"}}, "answer":
 {"status": 200, "headers": {"content-type": "application/json"}, "times_ms": [0.1], "body": {"a": 1}}}
"""
LONG: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "ignore_eos": True}


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def sync_client(url: str) -> Iterator[object]:
    """Returns everything that the openai package's client receives."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-none-of-ours") as client:
        chat, text = client.chat.completions.with_raw_response, client.completions.with_raw_response
        yield client.models.list().data[0].id
        asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12}
        for more in ({"temperature": 0}, {"seed": 5, "n": 2, "logprobs": True, "top_logprobs": 2}, {}, {}):
            yield chat.create(**asked, **more).content
        yield text.create(model="tiny", prompt=["One", "Two"], max_tokens=8, logprobs=1).content
        with client.chat.completions.with_streaming_response.create(**asked, stream=True) as answer:
            yield answer.read()
        with client.chat.completions.stream(
            **asked, seed=3, stream_options={"include_usage": True}
        ) as stream:
            yield [event.model_dump_json() for event in stream if event.type == "chunk"]
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**asked, temperature=9)
        yield caught.value.response.content


def async_client(url: str) -> Iterator[object]:
    async def heard() -> list[object]:
        asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 10}
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            plain = [client.chat.completions.create(**asked, seed=seed) for seed in range(4)]
            said: list[object] = [answer.model_dump_json() for answer in await asyncio.gather(*plain)]
            stream = await client.completions.create(model="tiny", prompt="Once", max_tokens=20, stream=True)
            return [*said, [chunk.model_dump_json() async for chunk in stream]]

    yield from asyncio.run(heard())


CLIENTS: dict[str, Callable[[str], Iterator[object]]] = {"sync": sync_client, "async": async_client}


def asked_until(server: Served, number: signal.Signals) -> dict[int, bytes]:
    """Returns what four clients receive, by the seeds of their requests, until the server refuses: a signal
    comes while it answers them."""
    heard: dict[int, bytes] = {}
    seeds = itertools.count()

    def ask(http: httpx.Client) -> None:
        with contextlib.suppress(httpx.TransportError):
            for seed in seeds:
                answer = http.post("/v1/chat/completions", json=asked(seed))
                if answer.status_code != 200 or b'"error"' in answer.content:
                    return
                heard[seed] = answer.content

    with httpx.Client(base_url=server.url) as http, ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask, http) for _ in range(4)]
        assert until(lambda: len(heard) >= 8)
        assert server.end(number) == 0
    for one in asking:
        one.result()
    return heard


def asked(seed: int) -> dict[str, Any]:
    return LONG | {"seed": seed, "stream": seed % 2 == 1}


class Recorded(NamedTuple):
    """A recording: `folder`, what a server recorded; `live`, what clients received, one by one; `last`, what
    they received when a signal came, by seed."""

    folder: Path
    live: dict[str, list[object]]
    last: dict[int, bytes]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("tapes")
    isa = native().isas()[-1]
    flags = ("--record", folder, "--shutdown-timeout", PATIENCE_SECONDS)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COREPIPE_ISA", isa)
        with served(TINY, *NAMED, *flags) as server:
            assert any(f"on {isa} kernels" in line for line in server.stderr)
            live = {name: list(client(server.url)) for name, client in CLIENTS.items()}
            return Recorded(folder, live, asked_until(server, signal.SIGTERM))


@pytest.fixture(scope="module")
def replaying(recorded: Recorded) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COREPIPE_ISA", "none of this machine's")
        with served("--replay", recorded.folder) as server:
            yield server
            assert server.end() == 0


def test_clients_hear_the_same_bytes_on_another_instruction_set(
    recorded: Recorded, replaying: Served
) -> None:
    first, second = recorded.live["sync"][3:5]
    assert first != second, "identical requests have answers of their own"
    assert {name: list(client(replaying.url)) for name, client in CLIENTS.items()} == recorded.live
    assert psutil.Process(replaying.process.pid).children() == [], "no engine is loaded"


def check_last(last: dict[int, bytes], replaying: Served) -> None:
    assert len(last) >= 8
    for seed, said in last.items():
        assert replaying.post("/v1/chat/completions", json=asked(seed)).content == said


def test_what_was_answered_when_a_signal_came_is_recorded(recorded: Recorded, replaying: Served) -> None:
    """Answers under way end within the shutdown time, and are recorded, too."""
    check_last(recorded.last, replaying)


@pytest.mark.slow
def test_what_was_answered_when_it_was_interrupted_is_recorded(tmp_path: Path) -> None:
    with served(TINY, *NAMED, "--record", tmp_path, "--shutdown-timeout", PATIENCE_SECONDS) as server:
        last = asked_until(server, signal.SIGINT)
    assert len(files(tmp_path)) >= len(last)
    with served("--replay", tmp_path) as server:
        check_last(last, server)


def test_a_replay_loads_no_model_and_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(CASSETTE)
    loaded = set(run_python(MODULES, tmp_path).split())
    assert "corepipe.serving.api.cassettes.replay" in loaded
    heavy = {"transformers", "gguf", "torch", "llguidance", "corepipe.kernels._native"}
    ours = {
        "corepipe.models.registry",
        "corepipe.engine.assembly.assembly",
        "corepipe.serving.supervision.child",
    }
    assert loaded & (heavy | ours) == set()


MODULES = """
import os, signal, sys
import corepipe.cli.start.replay
from corepipe.cli.app import main

def ended(*given):  # in the place of the server's own loop
    print(*sorted(sys.modules))

corepipe.cli.start.replay.uvloop.run = lambda work: (work.close(), ended())
sys.argv = ["corepipe", "serve", "--port", "0", "--replay", sys.argv[1]]
main()
"""


def run_python(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_two_processes_record_into_one_directory(tmp_path: Path) -> None:
    flags = (TINY, *NAMED, "--record", tmp_path)
    with served(*flags) as one, served(*flags) as other:
        said = [
            server.post("/v1/chat/completions", json=LONG).json()["id"]
            for _ in range(5)
            for server in (one, other)
        ]
        assert one.end() == other.end() == 0
    assert len(files(tmp_path)) == 10
    with served("--replay", tmp_path) as server:
        again = [server.post("/v1/chat/completions", json=LONG).json()["id"] for _ in range(10)]
    assert sorted(again) == sorted(said)


def refused(**flags: object) -> str:
    """Returns the error for wrong settings of a server."""
    with pytest.raises(UserError) as caught:
        ServerCassettes(configured(ServerConfig, flags))
    return caught.value.message


def test_flags_that_do_nothing_are_refused(tmp_path: Path) -> None:
    tapes = tmp_path / "tapes"
    assert refused(replay_else="record") == "--replay-else: record has no effect without --replay"
    assert refused(replay_pace="recorded") == "--replay-pace: recorded has no effect without --replay"
    without = "--record-redact: has no effect without --record or --replay"
    assert refused(record_redact=tapes) == without
    assert refused(record=tapes, replay=tapes).startswith("--replay: --record asks for everything anew")


def test_directories_and_rules_that_are_refused(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    assert refused(replay=rules) == f"--replay {rules}: No such file or directory"
    rules.write_text("[[rule]]\nregex = '['\n")
    told = refused(record=tmp_path / "new", record_redact=rules)
    assert told.startswith(f"--record-redact {rules}: rule 1: regex '[': ")
    assert refused(record=rules) == f"--record {rules}: File exists"


def test_a_server_says_so_in_one_line(tmp_path: Path) -> None:
    done = run("serve", "--port", 0, "--replay", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"corepipe: --replay {tmp_path}: holds no recorded exchange (*.yaml)\n"
