"""How long a server that replays takes to be ready: 10,000 cassettes of some 6.6 kB, streams of 41 events.

    python benchmarks/replay_start.py [--cassettes 10000] [--rounds 5] [--most 2.0]

A round starts `corepipe serve --replay` and waits until it takes requests; then it asks for one answer, which
must come.  The files are in the page cache.  Beside it stands a start with one cassette: the difference is
what the library takes.  Prints seconds of time and of processor time, the fastest and the median of the
rounds; ends with 1 where the fastest takes more than `--most`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from corepipe.serving.api.cassettes.exchange import (
    AnswerPiece,
    RecordedAnswer,
    RecordedExchange,
    RecordedRequest,
    event_of,
)
from corepipe.serving.api.cassettes.file_format import to_text

EVENTS = 41
"""Of a stream: a role, 38 words, an end and `[DONE]`."""
WORDS = ("the", " number", " of", " answers", " that", " a", " server", " gives", " is", " counted")
READY = re.compile(r"(http://[\w.:]+)/v1")


class Start(NamedTuple):
    """Seconds until it was ready, and of processor time until its end."""

    seconds: float
    cpu: float


def body(number: int) -> bytes:
    """A chat of some 3 kB."""
    system = " ".join(f"Rule {at}: answer as briefly as the question lets you." for at in range(40))
    asked: dict[str, Any] = {
        "model": "smollm2-135m-instruct",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": f"What is said of number {number}?"},
        ],
        "max_tokens": 40,
        "stream": True,
        "temperature": 0,
    }
    return json.dumps(asked).encode()


def exchange(number: int) -> RecordedExchange:
    return RecordedExchange(
        RecordedRequest("POST", "/v1/chat/completions", body(number)),
        RecordedAnswer(
            200,
            {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"},
            tuple(AnswerPiece(30.0 + 4.5 * at, data) for at, data in enumerate(stream(number))),
        ),
    )


def stream(number: int) -> Iterator[bytes]:
    """Its events, each by itself."""
    head = {"id": f"chatcmpl-{number:032x}", "object": "chat.completion.chunk", "created": 1795360000}
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": WORDS[(number + at) % len(WORDS)]}, None) for at in range(EVENTS - 3)]
    for delta, reason in [*deltas, ({}, "length")]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**head, "model": "smollm2-135m-instruct", "choices": [choice]}
        yield event_of(json.dumps(chunk, separators=(",", ":")).encode())
    yield event_of(b"[DONE]")


def fill(folder: Path, count: int) -> int:
    """Writes so many cassettes; their bytes."""
    total = 0
    for number in range(count):
        text = to_text(exchange(number))
        total += len(text)
        (folder / f"chat-completions-{number:012x}-001.yaml").write_bytes(text)
    return total


def started(folder: Path, asked: int) -> Start:
    """One start, and an answer to the request of cassette number `asked`."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "corepipe", "serve", "--replay", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = _ready(process)
        seconds = time.perf_counter() - began
        kind = {"content-type": "application/json"}
        answer = httpx.post(url + "/v1/chat/completions", content=body(asked), headers=kind)
    finally:
        process.terminate()
        process.communicate()
    assert answer.text.encode() == b"".join(stream(asked)), answer.text
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Start(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _ready(process: subprocess.Popen[str]) -> str:
    """Waits until the server takes requests; its address.  Raises RuntimeError where it has ended instead."""
    assert process.stderr is not None
    said, url = [], ""
    while not url and (line := process.stderr.readline()):
        said.append(line)
        if found := READY.search(line):
            url = found[1]
    while process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if url and httpx.get(url + "/health").status_code == HTTPStatus.OK:
                return url
        time.sleep(0.005)
    raise RuntimeError("the server has ended before it was ready: " + "".join(said) + process.stderr.read())


def main(cassettes: int, rounds: int, most: float) -> bool:
    with TemporaryDirectory() as one, TemporaryDirectory() as all_of_them:
        fill(Path(one), 1)
        size = fill(Path(all_of_them), cassettes)
        print(f"{cassettes} cassettes of {size / cassettes / 1e3:.1f} kB, {EVENTS} events each")
        few, many = [], []
        for number in range(rounds):
            few.append(started(Path(one), 0))
            many.append(started(Path(all_of_them), number * cassettes // rounds))
    for name, starts in (("one cassette", few), (f"{cassettes} cassettes", many)):
        seconds, cpu = ([one[at] for one in starts] for at in (0, 1))
        print(
            f"{name}: ready after {min(seconds):.2f} s, median {statistics.median(seconds):.2f} s; "
            f"processor time {min(cpu):.2f} s, median {statistics.median(cpu):.2f} s"
        )
    return min(start.seconds for start in many) <= most


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cassettes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=float, default=2.0)
    arguments = parser.parse_args()
    sys.exit(0 if main(arguments.cassettes, arguments.rounds, arguments.most) else 1)
