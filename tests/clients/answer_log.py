"""Runs a client, and logs the answers that it receives: `python -m tests.clients.answer_log FILE MODULE`.

Writes a line of JSON for each complete answer: the request, the status, and the SHA-256 of all bytes.
Runs in the client's own environment: all of them use httpx, or httpx2, which is similar.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import runpy
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

END = re.compile(
    rb'\ndata: (\[DONE\]|\{"type": ?"(response\.(completed|incomplete|failed)|message_stop)"[^\n]*)\n\n$'
)
"""The end of a stream, after which clients do not read on, in each of the dialects."""

DRAWN = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""An id that the client draws at random in each run."""

Tell = Callable[[dict[str, Any]], None]


class Body:
    """Hashes an answer's body and reports it at the end; an answer that a client abandons is not reported."""

    def __init__(self, answer: Any, tell: Tell) -> None:
        self._answer = answer
        self._tell: Tell | None = tell
        self._bytes = bytearray()

    def add(self, data: bytes) -> bytes:
        self._bytes += data
        return data

    def end(self, *, whole: bool) -> None:
        tell, self._tell = self._tell, None
        if tell is not None and (whole or END.search(self._bytes)):
            request = self._answer.request
            asked = hashlib.sha256(DRAWN.sub(b"", request.content)).hexdigest()
            tell(
                {
                    "asked": f"{request.method} {request.url.path} {asked}",
                    "status": self._answer.status_code,
                    "heard": hashlib.sha256(self._bytes).hexdigest(),
                    "bytes": len(self._bytes),
                }
            )


def listen(library: Any, tell: Tell) -> None:
    """Makes clients of the library report their answers."""

    class Heard(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, answer: Any) -> None:
            self._inner, self._body = answer.stream, Body(answer, tell)

        def __iter__(self) -> Iterator[bytes]:
            yield from map(self._body.add, self._inner)
            self._body.end(whole=True)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in self._inner:
                yield self._body.add(data)
            self._body.end(whole=True)

        def close(self) -> None:
            self._body.end(whole=False)
            self._inner.close()

        async def aclose(self) -> None:
            self._body.end(whole=False)
            await self._inner.aclose()

    plain, later = library.Client.send, library.AsyncClient.send

    def send(self: Any, request: Any, *, stream: bool = False, **more: Any) -> Any:
        answer = plain(self, request, stream=True, **more)
        answer.stream = Heard(answer)
        if not stream:
            answer.read()
        return answer

    async def send_later(self: Any, request: Any, *, stream: bool = False, **more: Any) -> Any:
        answer = await later(self, request, stream=True, **more)
        answer.stream = Heard(answer)
        if not stream:
            await answer.aread()
        return answer

    library.Client.send, library.AsyncClient.send = send, send_later


def main(file: Path, module: str) -> None:
    lock = threading.Lock()

    def tell(heard: dict[str, Any]) -> None:
        with lock, file.open("a") as lines:
            lines.write(json.dumps(heard) + os.linesep)

    for name in ("httpx", "httpx2"):
        try:
            listen(importlib.import_module(name), tell)
        except ImportError:
            continue
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
