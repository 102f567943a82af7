"""The work of `corepipe batch`: the lines of a file through the endpoints of a server that has no port."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import typer
import uvloop

from corepipe import signals
from corepipe.cli.flags.settings import configured
from corepipe.cli.output.common import (
    ReportProgress,
    check_writable,
    errors,
    print_json,
    progress_bar,
    sigterm_as_interrupt,
)
from corepipe.cli.start.starting import ResolvedModel, starting
from corepipe.cli.start.tokenizers import tokenizer_of
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import LoadProgress
from corepipe.errors import UserError, why
from corepipe.models import cache, hub, registry
from corepipe.serving.api.answering.models import Models
from corepipe.serving.api.answering.service import Service
from corepipe.serving.api.app import create_app_of
from corepipe.serving.api.batches.calls import Caller
from corepipe.serving.api.batches.lines import InputFault, Line, check_lines, read_lines
from corepipe.serving.api.batches.results import Results, WrittenResults
from corepipe.serving.api.batches.work import BatchWork, Progress
from corepipe.serving.api.http.tenants import ANYONE
from corepipe.serving.api.table import PATHS_OF_LINES
from corepipe.serving.config import ServerConfig
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient
from corepipe.version import __version__

ANY_NUMBER = 2**31
"""The most lines of a file: as many as its disk holds."""
AHEAD = 2
"""Lines under way for each sequence that a step may have: some wait, so that no seat stays free."""
TICK_SECONDS = 0.2
"""Seconds between two looks at the progress."""


def run(flags: Mapping[str, Any]) -> None:
    """Answers the lines that have no answer yet.  Raises UserError for unusable files and flags."""
    work = _FileWork(flags["input"], flags["output"])
    path = flags["model"] or hub.DEFAULT_MODEL
    given = {**flags, "model": path, "served_model_name": flags["served_model_name"] or [path]}
    server, engine = configured(ServerConfig, given), configured(EngineConfig, given)
    began = monotonic()
    if work.left:
        signals.ignore(signals.ORDERS)
        with starting([(engine, server)], engine, server, listening=False) as start, sigterm_as_interrupt():
            (found,) = start.found
            with cache.in_use(found.path):
                _answer(found, work)
    else:
        work.opened().close()
    work.print_summary(monotonic() - began, as_json=flags["json"])


class _FileWork:
    """The lines of one file and the file of their results.  left: how many have none yet."""

    def __init__(self, source: Path, target: Path) -> None:
        check_writable("--output", target)
        self._source, self._target = source, target
        self.before = self._written()
        self.progress = Progress()
        self.left = self._checked()

    def lines(self) -> Iterator[Line]:
        return read_lines(self._source, ServerConfig().max_body_bytes, PATHS_OF_LINES)

    def opened(self) -> LocalFile:
        """Opens the file of results, without a last line that is torn.  Raises UserError."""
        try:
            return LocalFile(self._target, self.before.size)
        except OSError as error:
            raise UserError(f"--output {self._target}: {why(error)}", "output") from error

    def print_summary(self, seconds: float, *, as_json: bool) -> None:
        """Prints how many lines were answered."""
        progress, before = self.progress, len(self.before.ids)
        if as_json:
            counts = {"completed": progress.completed, "failed": progress.failed, "answered_before": before}
            print_json({"total": progress.total, **counts, "seconds": round(seconds, 3)})
            return
        said = f"{progress.completed} answered and {progress.failed} failed in {seconds:.1f} s"
        earlier = f", {before} done before" if before else ""
        typer.echo(f"{self._target}: of {progress.total} lines {said}{earlier}")

    def _written(self) -> WrittenResults:
        try:
            return WrittenResults.of(self._target)
        except (OSError, ValueError) as error:
            reason = (
                why(error) if isinstance(error, OSError) else "holds lines that are no results of a batch"
            )
            raise UserError(f"--output {self._target}: {reason}", "output") from error

    def _checked(self) -> int:
        """Returns how many lines are left.  Raises UserError for an input that is wrong as a whole, and for
        results of other requests."""
        left = 0

        def compared() -> Iterator[Line]:
            nonlocal left
            for line in self.lines():
                known = self.before.ids.get(line.number)
                if known is not None and known != line.id.encode():
                    said = f"line {line.number} of --input {self._source} is another request now"
                    raise UserError(f"--output {self._target}: {said}; give another file", "output")
                left += known is None
                yield line

        try:
            self.progress.total = sum(1 for _ in check_lines(compared(), ANY_NUMBER))
        except InputFault as fault:
            at = f" line {fault.line}:" if fault.line else ""
            raise UserError(f"--input {self._source}:{at} {fault.message}", "input") from fault
        except OSError as error:
            raise UserError(f"--input {self._source}: {why(error)}", "input") from error
        return left


class LocalFile:
    """A file of results that is not in a store."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("r+b" if path.exists() else "wb", buffering=0)
        if path.is_file():
            self._file.truncate(size)
            self._file.seek(size)

    async def write(self, data: bytes, *, durably: bool = False) -> None:
        await asyncio.to_thread(self._append, data, durably=durably)

    def close(self) -> None:
        self._file.close()

    def _append(self, data: bytes, *, durably: bool) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        if durably:
            with suppress(OSError):  # a pipe or a terminal
                os.fsync(self._file.fileno())


def _answer(found: ResolvedModel, work: _FileWork) -> None:
    model = registry.load(found.path)
    tokenizer = tokenizer_of(found.path, model, found.server.chat_template)
    client = ProcessClient(found.resolved, first=found.process)
    task = model.task(found.engine.task)
    service = Service(client, tokenizer, found.engine, found.server, __version__, task)
    models = Models([service])
    try:
        uvloop.run(_answered(models, client, found, work))
    except EngineError as error:  # the engine's own message is on stderr already
        errors().print(f"corepipe: {error}")
        raise typer.Exit(1) from error
    except OSError as error:
        raise UserError(f"--output: {why(error)}", "output") from error
    finally:
        models.close()


async def _answered(models: Models, client: ProcessClient, found: ResolvedModel, work: _FileWork) -> None:
    app, engine = create_app_of(models, found.server), found.engine
    file = work.opened()
    try:
        with progress_bar(errors()) as report:

            def show(event: LoadProgress) -> None:
                report(event.what, event.done)

            models.first.set_ready(await client.start(show))
            slots = asyncio.Semaphore(AHEAD * engine.max_num_seqs * (engine.data or 1))
            batch = BatchWork(Caller(app, ANYONE), Results(file, file), slots, work.progress)
            watch = asyncio.create_task(_watched(report, work))
            try:
                await batch.answer(work.lines(), work.before.ids)
            finally:
                watch.cancel()
    finally:
        await client.close()
        file.close()
        app.state.store.close()


async def _watched(report: ReportProgress, work: _FileWork) -> None:
    """Reports the progress until it is cancelled."""
    progress, before = work.progress, len(work.before.ids)
    while True:
        done = before + progress.completed + progress.failed
        report(
            "lines", done / max(1, progress.total), f"{done} of {progress.total}, {progress.failed} failed"
        )
        await asyncio.sleep(TICK_SECONDS)
