"""An OpenAI-compatible server that computes nothing: it waits, sends, and writes down when it did.

    python -m tests.bench.stub '{"first": 0.1, "gap": 0.01, "slots": 4, "log": "sent.jsonl"}'

It prints its port.  Times in the log are of CLOCK_MONOTONIC, as `perf_counter` has them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from time import perf_counter
from typing import Any

import httptools

from corepipe.bench.setup import PROBE_TOKENS

WHOLE = {"/v1/embeddings": "data", "/classify": "data", "/v1/rerank": "results"}
"""Key of the results in answers that come whole."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """first: seconds to the first token; gap: to each further one; slots: requests served at a time (0:
    all). chunk: tokens in an event.  stall: from this second of its life to that one nothing is sent. key:
    the API key it requires.  refuse: every so many requests it answers 429.  cut: every so many it
    disconnects after the first token, with the event `error` if there is one.  reason: its finish_reason
    of answers longer than those of the probes.  usage: whether it counts tokens.  pad: tokens that it adds
    to each prompt."""

    first: float = 0.05
    gap: float = 0.01
    slots: int = 0
    chunk: int = 1
    stall: tuple[float, float] = (0.0, 0.0)
    key: str = ""
    refuse: int = 0
    cut: int = 0
    error: str = ""
    reason: str = "length"
    usage: bool = True
    pad: int = 0
    log: str = ""


class Stub:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.slots = asyncio.Semaphore(behaviour.slots or 1 << 30)
        self.started = perf_counter()
        self.log = Path(behaviour.log).open("w", buffering=1) if behaviour.log else None  # noqa: SIM115
        self.asked = 0
        self.models = {"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "nobody"}]}

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def answer(self, connection: Connection, path: str, headers: dict[str, str], body: bytes) -> None:
        if self.behaviour.key and headers.get("authorization") != f"Bearer {self.behaviour.key}":
            connection.send(401, {"error": {"message": "no such key"}})
        elif path == "/v1/models":
            connection.send(200, self.models)
        elif path in {"/v1/completions", "/v1/chat/completions", *WHOLE}:
            self.asked += 1
            refused = self.behaviour.refuse and self.asked % self.behaviour.refuse == 0
            if refused:
                connection.send(429, {"error": {"message": "the queue is full"}})
            else:
                received = perf_counter()
                request = json.loads(body)
                serve = (
                    self.compute(connection, path, request)
                    if path in WHOLE
                    else self.serve(connection, request, headers, received)
                )
                asyncio.ensure_future(serve)  # noqa: RUF006
        else:
            connection.send(404, {"error": {"message": f"no {path}"}})

    async def serve(
        self, connection: Connection, request: dict[str, Any], headers: dict, received: float
    ) -> None:
        chat, told = "messages" in request, self.asked
        async with self.slots:
            due, sent = perf_counter() + self.behaviour.first, []
            connection.open_stream()
            for start in range(0, request["max_tokens"], self.behaviour.chunk):
                await self.until(due + start * self.behaviour.gap)
                count = min(self.behaviour.chunk, request["max_tokens"] - start)
                text = " word" * count
                choice = {"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}
                connection.event({"choices": [choice]})
                sent.append(perf_counter())
                if connection.gone or (self.behaviour.cut and told % self.behaviour.cut == 0):
                    break
        whole = len(sent) * self.behaviour.chunk >= request["max_tokens"]
        if self.log is not None:  # before the answer ends: whoever has it all may end this process
            line = {"id": headers.get("x-request-id"), "received": received, "sent": sent, "whole": whole}
            self.log.write(json.dumps(line) + "\n")
        if whole:
            self.finish(connection, request, chat)
        elif self.behaviour.error:
            connection.event({"error": {"message": self.behaviour.error}})
        connection.transport.close() if not whole else None

    async def compute(self, connection: Connection, path: str, request: dict[str, Any]) -> None:
        """Sends an answer that comes whole: as many results as there are texts, or one too few where it
        `cut`s."""
        async with self.slots:
            await self.until(perf_counter() + self.behaviour.first)
        texts = request.get("documents", [request.get("input")])
        cut = self.behaviour.cut and self.asked % self.behaviour.cut == 0
        results = [{"index": n} for n in range(len(texts) - bool(cut))]
        query = len(request.get("query", "").split())
        tokens = sum(query + len(text.split()) + self.behaviour.pad for text in texts)
        usage = {"total_tokens": tokens} if path == "/v1/rerank" else {"prompt_tokens": tokens}
        error = {"error": self.behaviour.error} if cut and self.behaviour.error else {}
        connection.send(200, {WHOLE[path]: results, "usage": usage, **error})

    async def until(self, due: float) -> None:
        begin, end = (self.started + at for at in self.behaviour.stall)
        if begin <= due < end:
            due = end
        await asyncio.sleep(due - perf_counter())

    def finish(self, connection: Connection, request: dict[str, Any], chat: bool) -> None:
        reason = self.behaviour.reason if request["max_tokens"] > PROBE_TOKENS else "length"
        choice = {"index": 0, "finish_reason": reason, **({"delta": {}} if chat else {"text": ""})}
        connection.event({"choices": [choice]})
        if self.behaviour.usage:
            usage = {"prompt_tokens": self.prompt_tokens(request), "completion_tokens": request["max_tokens"]}
            connection.event({"choices": [], "usage": usage})
        connection.write(b"6\r\ndata: \r\n8\r\n[DONE]\n\n\r\n0\r\n\r\n")

    def prompt_tokens(self, request: dict[str, Any]) -> int:
        """Counts a token for each word, id or role."""
        prompt = request.get("prompt", "")
        said = " ".join(m["role"] + " " + m["content"] for m in request.get("messages", []))
        return self.behaviour.pad + (
            len(prompt) if isinstance(prompt, list) else len((prompt or said).split())
        )


class Connection(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.gone = False
        self._reset()

    def _reset(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.headers: dict[str, str] = {}
        self.body = b""
        self.path = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path = url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path, headers, body = self.path, self.headers, self.body
        self._reset()
        self.stub.answer(self, path, headers, body)

    def send(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)

    def open_stream(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.write(head)

    def event(self, document: object) -> None:
        data = b"data: " + json.dumps(document).encode() + b"\n\n"
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def write(self, data: bytes) -> None:
        if not self.gone:
            self.transport.write(data)


async def main(behaviour: Behaviour) -> None:
    stub = Stub(behaviour)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(stub), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def running(**behaviour: Any) -> Iterator[str]:
    """Starts a stub in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "tests.bench.stub", json.dumps(behaviour)]
    process = Popen(command, stdout=PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sends(log: Path) -> dict[str, dict[str, Any]]:
    """Returns the log: request id -> times at which it was received and its tokens were sent."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {line["id"]: line for line in lines}


if __name__ == "__main__":
    asyncio.run(main(Behaviour(**json.loads(sys.argv[1]))))
