"""Batches of a real server that is killed: every line is answered once, as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.servers import TINY, Served, served, until

CHAT = "/v1/completions"


def lines_of(count: int) -> list[dict[str, Any]]:
    """Greedy and sampled lines of different lengths, some with a seed; every 50th is wrong."""
    draw, made = random.Random(count), []
    for number in range(count):
        body: dict[str, Any] = {
            "model": "tiny",
            "prompt": f"{draw.choice(['Once', 'A cat', 'The sea'])} {number}",
            "max_tokens": draw.randint(1, 24),
            "temperature": draw.choice([0, 1]),
        }
        if draw.random() < 0.3:
            body["seed"] = number
        if number % 50 == 7:
            body["max_tokens"] = "many"
        made.append({"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body})
    return made


def client_of(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=5)


def begin(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id


def answered(client: openai.OpenAI, batch: str) -> int:
    counts = client.batches.retrieve(batch).request_counts
    return counts.completed + counts.failed


def texts(client: openai.OpenAI, batch: str) -> dict[str, str | int]:
    """The text of each line, or the status of its error; fails for a line that has two results."""
    until(lambda: client.batches.retrieve(batch).status == "completed", 3600)
    ended, found = client.batches.retrieve(batch), {}
    for name in (ended.output_file_id, ended.error_file_id):
        for one in map(json.loads, client.files.content(name).text.splitlines()):
            assert one["custom_id"] not in found
            answer = one["response"]
            ok = answer["status_code"] == 200
            found[one["custom_id"]] = answer["body"]["choices"][0]["text"] if ok else answer["status_code"]
    assert ended.request_counts.total == len(found)
    return found


def killed_and_resumed(folder: Path, count: int, kills: int) -> None:
    flags = (TINY, "--served-model-name", "tiny", "--threads", 1, "--store-dir", folder)
    lines, batch = lines_of(count), ""
    for kill in range(kills):
        with served(*flags) as server, client_of(server) as client:
            batch = batch or begin(client, lines)
            due = (kill + 1) * count // (kills + 1)
            until(lambda: answered(client, batch) >= due, 3600)  # noqa: B023
            server.end(signal.SIGKILL)
    with served(*flags) as server, client_of(server) as client:
        found = texts(client, batch)
        assert found.keys() == {line["custom_id"] for line in lines}
        assert [name for name, text in found.items() if text == 400] == [
            name for name in found if int(name.removeprefix("line-")) % 50 == 7
        ]
        assert found == texts(client, begin(client, lines)), "an undisturbed run answers alike"


def test_a_kill_loses_doubles_and_changes_no_line(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, 300, 1)


@pytest.mark.slow
def test_three_kills_of_ten_thousand_lines(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, 10_000, 3)
