"""The batches of a server: they run beside live requests, from the moment they are made to their last result,
and go on after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from fastapi import FastAPI

from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.stored import new_id
from corepipe.serving.api.batches.calls import Caller
from corepipe.serving.api.batches.lines import InputFault, Line, check_lines, read_lines
from corepipe.serving.api.batches.results import Results, WrittenResults
from corepipe.serving.api.batches.work import READ_LINES, BatchWork, Progress
from corepipe.serving.api.http.tenants import Tenant, Tenants
from corepipe.serving.config import ServerConfig
from corepipe.serving.stores.batches import BATCHES, BatchFault, BatchStatus, StoredBatch
from corepipe.serving.stores.errors import StoreError
from corepipe.serving.stores.files import FILES, GrowingFile, StoredFile
from corepipe.serving.stores.store import Store
from corepipe.serving.stores.table import Row

if TYPE_CHECKING:  # imports sqlite
    from corepipe.serving.stores.transaction import Transaction

MOST_AT_ONCE = 8
"""Lines that are answered at once, at most: the more, the longer is a step that a live request waits for."""
MOST_WAITING = 100
"""Batches that a key may have that have not ended."""
AGAIN_SECONDS = 10.0
"""Seconds until a batch goes on whose store failed."""

_ENDS: dict[BatchStatus, tuple[BatchStatus, str, str]] = {
    "in_progress": ("expired", "batch_expired", "The batch expired before this request was answered."),
    "cancelling": (
        "cancelled",
        "batch_cancelled",
        "The batch was cancelled before this request was answered.",
    ),
}
"""The end of a batch that does not answer all lines, and the error of the others, by its last status."""


class Batches:
    """The batches of the server `app`.  endpoints: the paths that lines may go to."""

    def __init__(
        self, app: FastAPI, models: Models, server: ServerConfig, tenants: Tenants, endpoints: Sequence[str]
    ) -> None:
        self._app = app
        self._store: Store = app.state.store
        self._tenants = tenants
        self._longest = server.max_body_bytes
        self.endpoints = tuple(endpoints)
        self._slots = asyncio.Semaphore(max(1, min(MOST_AT_ONCE, models.facts.engine.max_num_seqs // 2)))
        self._turns: dict[str, asyncio.Lock] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Progress] = {}

    async def resume(self) -> None:
        """Goes on with the batches that had not ended when the server did, and removes torn uploads."""

        def found(kept: Transaction) -> list[Row[StoredBatch]]:
            rows = kept.unended(BATCHES)
            used = {name for row in rows for name in (row.value.output_file, row.value.error_file)}
            inputs = {row.value.input_file for row in rows}
            for file in kept.unended(FILES):
                if file.value.status == "growing" and file.id not in used:
                    kept.delete(FILES, file.tenant, file.id)
                elif file.value.status == "processed" and file.id not in inputs:
                    kept.hold(FILES, file.tenant, file.id, ended=True)
            return rows

        for row in await self._store.run(found):
            self._begin(row)

    async def add(self, tenant: Tenant, batch: StoredBatch) -> Row[StoredBatch] | None:
        """Returns a new batch, which begins; None where its input is no file of the tenant.

        Raises StoreError, and OverflowError where the tenant has too many that have not ended.
        """
        name = new_id("batch_")

        def added(kept: Transaction) -> Row[StoredBatch] | None:
            file = kept.get(FILES, tenant.salt, batch.input_file)
            if file is None or file.value.status != "processed":
                return None
            if sum(row.tenant == tenant.salt for row in kept.unended(BATCHES)) >= MOST_WAITING:
                raise OverflowError
            kept.hold(FILES, tenant.salt, batch.input_file, ended=False)
            value = msgspec.structs.replace(
                batch, times={"validating": kept.now}, expires_at=kept.now + batch.expires_at
            )
            return kept.insert(BATCHES, tenant.salt, name, value, ended=False)

        row = await self._store.run(added)
        if row is not None:
            self._begin(row)
        return row

    async def cancel(self, row: Row[StoredBatch]) -> Row[StoredBatch]:
        """Begins to cancel a batch, unless it has ended; returns it."""
        if row.value.status not in ("validating", "in_progress"):
            return row
        if (task := self._tasks.get(row.id)) is not None:
            task.cancel()
            await asyncio.wait([task])
        row = await self._latest(row)
        if row.value.status in ("validating", "in_progress"):
            row = await self._change(row, "cancelling")
        if not row.ended:
            self._begin(row)
        return row

    def progress(self, row: Row[StoredBatch]) -> Progress:
        """Returns how many lines of a batch are answered."""
        value = row.value
        return self._progress.get(row.id) or Progress(value.total, value.completed, value.failed)

    async def close(self) -> None:
        """Stops all work; what is not answered yet is answered after the next start."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def _begin(self, row: Row[StoredBatch]) -> None:
        self._tasks[row.id] = task = asyncio.create_task(self._run(row))
        self._progress.setdefault(row.id, Progress(row.value.total))

        def ended(_: object) -> None:
            if self._tasks.get(row.id) is task:
                del self._tasks[row.id]

        task.add_done_callback(ended)

    async def _run(self, row: Row[StoredBatch]) -> None:
        """Takes a batch to its end.  Those of a tenant run one after the other."""
        turn = self._turns.setdefault(row.tenant, asyncio.Lock())
        async with turn:
            while True:
                try:
                    await self._once(row)
                except StoreError as error:
                    _log().error("batch %s waits for the store: %s", row.id, error.message)
                except OSError as error:
                    _log().error("batch %s waits for its files: %s", row.id, error)
                else:
                    return
                await asyncio.sleep(AGAIN_SECONDS)
                row = await self._latest(row)

    async def _once(self, row: Row[StoredBatch]) -> None:
        path = (await self._store.folder()).file(row.value.input_file)

        def lines() -> Iterator[Line]:
            return read_lines(path, self._longest, (row.value.endpoint,))

        if row.value.status == "validating":
            try:
                total = await _checked(lines())
            except InputFault as fault:
                told = BatchFault(fault.code, fault.message, fault.line, fault.param)
                await self._end(row, "failed", fault=told)
                return
            row = await self._start(row, total)
        files = [
            await self._opened(row, name) for name in (row.value.output_file, row.value.error_file) if name
        ]
        try:
            await self._answer(row, files, lines)
        finally:
            for file in files:
                file.close()

    async def _answer(
        self, row: Row[StoredBatch], files: Sequence[GrowingFile], lines: Callable[[], Iterator[Line]]
    ) -> None:
        """Answers what is not answered, and ends the batch."""
        if not files:  # it was cancelled before its first line
            await self._end(row, "cancelled")
            return
        tenant = self._tenants.of_salt(row.tenant)
        if tenant is None:
            await self._end(row, "failed", fault=BatchFault("key_removed", "Its API key was removed."))
            return
        done = await self._done(row)
        progress = self._progress[row.id]
        progress.total, progress.completed, progress.failed = row.value.total, len(done[0]), len(done[1])
        work = BatchWork(Caller(self._app, tenant.for_lines()), Results(*files), self._slots, progress)
        status: BatchStatus = "completed"
        if row.value.status == "in_progress" and await self._in_time(work, row, lines, done[0] | done[1]):
            row = await self._change(row, "finalizing")
        elif row.value.status != "finalizing":
            status, code, message = _ENDS[row.value.status]
            done = await self._done(row)
            await work.give_up(lines(), done[0] | done[1], code, message)
        await self._end(row, status, progress, [await self._finished(row, file) for file in files])

    async def _in_time(
        self, work: BatchWork, row: Row[StoredBatch], lines: Callable[[], Iterator[Line]], done: set[int]
    ) -> bool:
        """Answers lines; returns whether all were answered before the batch expired."""
        now = await self._store.run(lambda kept: kept.now)
        try:
            async with asyncio.timeout(max(0, row.value.expires_at - now)):
                await work.answer(lines(), done)
        except TimeoutError:
            return False
        return True

    async def _start(self, row: Row[StoredBatch], total: int) -> Row[StoredBatch]:
        output, errors = new_id("file-"), new_id("file-")
        return await self._change(row, "in_progress", total=total, output_file=output, error_file=errors)

    async def _opened(self, row: Row[StoredBatch], name: str) -> GrowingFile:
        """Opens a file of results where its last whole line ends."""
        file = await self._store.run(lambda kept: kept.get(FILES, row.tenant, name))
        if file is None:
            return await GrowingFile.begin(self._store, row.tenant, name, StoredFile("", "batch_output"))
        written = await self._written(name)
        return await GrowingFile.resume(self._store, file, written.size)

    async def _done(self, row: Row[StoredBatch]) -> list[set[int]]:
        """Returns the lines that have an answer, and those that have an error."""
        return [set((await self._written(one)).ids) for one in (row.value.output_file, row.value.error_file)]

    async def _written(self, name: str) -> WrittenResults:
        path = (await self._store.folder()).file(name)
        return await asyncio.to_thread(WrittenResults.of, path)

    async def _finished(self, row: Row[StoredBatch], file: GrowingFile) -> str | None:
        """Ends a file of results; returns its id, or None if it has none."""
        if not file.size:
            await file.drop()
            return None
        kind = "output" if file.row.id == row.value.output_file else "error"
        await file.finish(f"{row.id}_{kind}.jsonl", "batch_output", row.value.output_seconds)
        return file.row.id

    async def _end(
        self,
        row: Row[StoredBatch],
        status: BatchStatus,
        progress: Progress | None = None,
        shown: Sequence[str | None] = (None, None),
        fault: BatchFault | None = None,
    ) -> None:
        counted = progress or Progress()
        changes = {
            "completed": counted.completed,
            "failed": counted.failed,
            "shown_output": shown[0],
            "shown_error": shown[1],
            "fault": fault,
        }
        await self._change(row, status, ended=True, **changes)
        self._progress.pop(row.id, None)

    async def _change(
        self, row: Row[StoredBatch], status: BatchStatus, *, ended: bool = False, **changes: object
    ) -> Row[StoredBatch]:
        """Puts a batch into a status.  At its end its input is released, unless another batch reads it."""

        def changed(kept: Transaction) -> Row[StoredBatch]:
            there = kept.get(BATCHES, row.tenant, row.id) or row
            times = {**there.value.times, status: kept.now}
            value = msgspec.structs.replace(there.value, status=status, times=times, **changes)
            kept.update(BATCHES, row.tenant, row.id, value, ended=ended)
            inputs = [one.value.input_file for one in kept.unended(BATCHES) if one.tenant == row.tenant]
            if ended and value.input_file not in inputs:
                kept.hold(FILES, row.tenant, value.input_file, ended=True)
            return Row(row.id, row.tenant, row.created, row.expires, ended, value)

        return await self._store.run(changed)

    async def _latest(self, row: Row[StoredBatch]) -> Row[StoredBatch]:
        try:
            return await self._store.run(lambda kept: kept.get(BATCHES, row.tenant, row.id)) or row
        except StoreError:
            return row


async def _checked(lines: Iterator[Line]) -> int:
    """Returns how many lines there are.  Raises InputFault for what must not be in the file."""
    checked, total = check_lines(lines), 0

    def some() -> int:
        return sum(1 for _ in zip(range(READ_LINES), checked, strict=False))

    while count := await asyncio.to_thread(some):
        total += count
    return total


def _log() -> logging.Logger:
    return logging.getLogger(__name__)
