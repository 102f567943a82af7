"""The work of a batch: its lines to the endpoints, and their answers to its results."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice

from corepipe.serving.api.batches.calls import Caller
from corepipe.serving.api.batches.lines import Line
from corepipe.serving.api.batches.results import Results, result, unanswered

READ_LINES = 64
"""Lines that are read at once; the event loop goes on meanwhile."""


@dataclass
class Progress:
    """The lines of a batch that have been answered so far."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchWork:
    """Answers lines, as many at a time as there are `slots`.

    done: the numbers of lines that have a result already.
    """

    def __init__(
        self, caller: Caller, results: Results, slots: asyncio.Semaphore, progress: Progress
    ) -> None:
        self._caller = caller
        self._results = results
        self._slots = slots
        self._progress = progress

    async def answer(self, lines: Iterator[Line], done: Container[int]) -> None:
        """Answers all lines that are not `done`.  Raises StoreError where a result cannot be written."""
        try:
            async with asyncio.TaskGroup() as group:
                while some := await asyncio.to_thread(lambda: list(islice(lines, READ_LINES))):
                    for line in some:
                        if line.number not in done:
                            await self._slots.acquire()
                            task = group.create_task(self._answer(line))
                            task.add_done_callback(lambda _: self._slots.release())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._results.finish()

    async def give_up(self, lines: Iterator[Line], done: Container[int], code: str, message: str) -> None:
        """Writes an error for each line that is not `done`.  Raises StoreError."""
        while some := await asyncio.to_thread(lambda: list(islice(lines, READ_LINES))):
            left = [line for line in some if line.number not in done]
            await asyncio.gather(*(self._add(unanswered(line, code, message), failed=True) for line in left))

    async def _answer(self, line: Line) -> None:
        if line.error is not None:
            written = result(line, line.id, line.error.status, line.error.body(line.url))
            await self._add(written, failed=True)
            return
        answer = await self._caller.answer(line)
        written = result(line, answer.request_id, answer.status, answer.body)
        await self._add(written, failed=answer.status != 200)

    async def _add(self, written: bytes, *, failed: bool) -> None:
        await self._results.add(written, failed=failed)
        if failed:
            self._progress.failed += 1
        else:
            self._progress.completed += 1
