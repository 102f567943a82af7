"""The results of a batch: lines that are on the disk before they count, and what is there after a crash."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from corepipe.serving.api.batches.lines import Line

_ID = re.compile(rb'\{"id":"(batch_req_[0-9a-f]{16}_([1-9][0-9]{0,9}))",')


_ENDS_OF_LINES = [(end.encode(), b"\\u%04x" % ord(end)) for end in "\x85\u2028\u2029"]
"""Characters that some readers of lines take for their end; within JSON they are only in strings."""


class ResultFile(Protocol):
    """A file that grows by lines."""

    async def write(self, data: bytes, *, durably: bool = False) -> None: ...


class WrittenResults(NamedTuple):
    """The results that a file has: the ids of their lines by number, and the bytes of whole lines."""

    ids: dict[int, bytes]
    size: int

    @staticmethod
    def of(path: Path) -> WrittenResults:
        """Reads a file of results; a last line that is torn is not among them.  There may be no file.

        Raises ValueError for a line that is no result.
        """
        ids, size = dict[int, bytes](), 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    found = _ID.match(line)
                    if found is None:
                        raise ValueError(f"{path}: byte {size} begins no result of a batch")
                    ids[int(found[2])] = found[1]
                    size += len(line)
        return WrittenResults(ids, size)


def result(line: Line, request_id: str, status: int, body: bytes) -> bytes:
    """Returns the line of an answer; `body` is JSON."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _result(line, response, None)


def unanswered(line: Line, code: str, message: str) -> bytes:
    """Returns the line of a request that got no answer."""
    return _result(line, None, {"code": code, "message": message})


def _result(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    fields = {"id": line.id, "custom_id": line.custom_id, "response": response, "error": error}
    written = msgspec.json.encode(fields)
    for plain, escaped in _ENDS_OF_LINES:
        written = written.replace(plain, escaped)
    return written + b"\n"


class Results:
    """Takes the results of a batch.  Those that come while others are written go to the disk together.

    files: for answers, and for errors.
    """

    def __init__(self, answers: ResultFile, errors: ResultFile) -> None:
        self._queues: list[tuple[ResultFile, list[tuple[bytes, asyncio.Future[None]]]]] = [
            (answers, []),
            (errors, []),
        ]
        self._writer: asyncio.Task[None] | None = None

    async def add(self, line: bytes, *, failed: bool) -> None:
        """Returns when the line is on the disk.  Raises StoreError."""
        written = asyncio.get_running_loop().create_future()
        self._queues[failed][1].append((line, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await written

    async def finish(self) -> None:
        """Waits until nothing is being written."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write(self) -> None:
        while any(queue for _, queue in self._queues):
            for file, queue in self._queues:
                taken, queue[:] = queue[:], []
                if taken:
                    await self._append(file, taken)

    @staticmethod
    async def _append(file: ResultFile, taken: Sequence[tuple[bytes, asyncio.Future[None]]]) -> None:
        error: Exception | None = None
        try:
            await file.write(b"".join(line for line, _ in taken), durably=True)
        except Exception as failed:  # raised where the lines come from
            error = failed
        for _, written in taken:
            if written.done():
                continue
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error)
