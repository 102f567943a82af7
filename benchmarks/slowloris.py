"""Effect of slow clients on others: p99 of good requests beside 200 heads that never end, and without them.

Rounds of both alternate against one `corepipe serve` process, so that changes of the machine affect both.
Prints the ratio of the p99s over all rounds; the server may lose 20 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import httpx

TINY = Path(__file__).parent.parent / "tests" / "data" / "tiny" / "llama3"
START = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = {"model": "m", "prompt": "The number of", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
ALLOWED = 1.2


@contextlib.contextmanager
def serving(model: str) -> Iterator[str]:
    """Starts a server; yields its URL."""
    command = [sys.executable, "-m", "corepipe", "serve", model, "--served-model-name", "m", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"(http://[\w.:]+)/v1", line):
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield found[1]
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait()


class SlowClients:
    """Connections that send a byte of a header every `seconds`, and reconnect when the server closes them."""

    def __init__(self, url: str, count: int, seconds: float) -> None:
        where = urlsplit(url)
        self._address = (where.hostname or "", where.port or 80)
        self._sockets = [self._connect() for _ in range(count)]
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drip)

    def __enter__(self) -> SlowClients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for one in self._sockets:
            one.close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=10)
        connection.sendall(START)
        return connection

    def _drip(self) -> None:
        pause = self._seconds / len(self._sockets)
        while True:
            for at, one in enumerate(self._sockets):
                if self._stop.wait(pause):
                    return
                try:
                    one.sendall(b"x")
                    one.settimeout(0)
                    with contextlib.suppress(BlockingIOError):
                        if not one.recv(1000):
                            raise ConnectionResetError
                except OSError:
                    one.close()
                    self._sockets[at] = self._connect()


def latencies(url: str, requests: int, streams: int) -> list[float]:
    """Returns the seconds of each of `requests` requests, `streams` at a time."""
    found: list[float] = []

    def ask(count: int) -> None:
        with httpx.Client(base_url=url, timeout=60) as http:
            for _ in range(count):
                began = time.perf_counter()
                answer = http.post("/v1/completions", json={**BODY, "seed": random.randrange(1000)})
                answer.raise_for_status()
                found.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask, args=(requests // streams,)) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(TINY))
    parser.add_argument("--slow", type=int, default=200, help="slow connections")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=300, help="good requests a round")
    parser.add_argument("--streams", type=int, default=4, help="of them at a time")
    given = parser.parse_args()
    without: list[float] = []
    beside: list[float] = []
    with serving(given.model) as url:
        latencies(url, given.requests, given.streams)  # warm
        for number in range(given.rounds):
            without += latencies(url, given.requests, given.streams)
            with SlowClients(url, given.slow, seconds=5.0):
                beside += latencies(url, given.requests, given.streams)
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    ratio = p99(beside) / p99(without)
    result = {
        "requests": len(beside),
        "p99_ms_without": round(p99(without) * 1e3, 2),
        "p99_ms_beside": round(p99(beside) * 1e3, 2),
        "ratio": round(ratio, 3),
    }
    print(json.dumps(result))
    return 0 if ratio <= ALLOWED else 3


if __name__ == "__main__":
    sys.exit(main())
