"""Output that the commands share: progress, results and files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import typer

from corepipe.errors import UserError
from corepipe.workload.slo import seconds_of

if TYPE_CHECKING:  # heavy: a help and a start do without, or come to it later
    from rich.console import Console
    from rich.progress import TaskID

LINE_SECONDS = 3.0
"""Between two lines of a log about the same."""

SILENT_SECONDS = 5
"""After which a log says how far the work is."""

BAR_WIDTH = 20


def errors() -> Console:
    """The console for progress, logs and errors: stderr."""
    from corepipe.cli.output.console import Lines  # noqa: PLC0415 -- see above

    return Lines(stderr=True)


def results() -> Console:
    """The console for a command's result: stdout."""
    from corepipe.cli.output.console import Lines  # noqa: PLC0415 -- see above

    return Lines()


def print_json(result: object) -> None:
    """A command's result for machines, on stdout."""
    typer.echo(json.dumps(result, indent=2))


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Runs the body with SIGTERM raising KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Runs the body until Ctrl-C or SIGTERM, which end it as if that were its end."""
    with sigterm_as_interrupt():
        try:
            yield
        except KeyboardInterrupt:
            return


def seconds(flag: str, text: str | None) -> float | None:
    """Reads 500ms or 0.5s; None stays None.  Raises UserError for anything else."""
    if text is None:
        return None
    found = seconds_of(text)
    if found is None:
        raise UserError(f"{flag} {text}: give a time with its unit, as 500ms or 0.5s", flag.lstrip("-"))
    return found


def check_writable(flag: str, path: Path | None) -> None:
    """Raises UserError where a result cannot be written to `path`: before the work, not after it."""
    if path is None:
        return
    problem = None
    if not path.parent.is_dir():
        problem = f"there is no directory {path.parent}"
    elif path.is_dir():
        problem = "is a directory"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "may not be written"
    if problem is not None:
        raise UserError(f"{flag} {path}: {problem}", flag.lstrip("-"))


def write_result(flag: str, path: Path, text: str) -> None:
    """Writes a file that the user named with `flag`, whole or not at all.  Raises UserError."""
    try:
        target = path.resolve()
        if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
            target.write_text(text, encoding="utf-8", newline="")  # a device or a pipe; nothing else can be
        else:
            _replace(target, text)
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror}", flag.lstrip("-")) from error


def _replace(path: Path, text: str) -> None:
    """Puts a new file in a file's place, if all of it can be written."""
    draft = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class ReportProgress(Protocol):
    def __call__(self, what: str, done: float, note: str = "") -> None:
        """Shows how much of `what` is done, from 0 to 1, and a note on it."""


@contextmanager
def progress_bar(console: Console) -> Iterator[ReportProgress]:
    """Yields `report(what, done, note)`: a bar for each `what`; in a log, a line, and one every few
    seconds where there are notes, or where nothing was printed for longer."""
    if not console.is_interactive:
        with _lines(console) as report_line:
            yield report_line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 -- see above
    from rich.table import Column  # noqa: PLC0415 -- see above

    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(BAR_WIDTH, table_column=Column(no_wrap=True)),
        TextColumn("{task.percentage:>3.0f}%", table_column=Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}", markup=False, table_column=Column()),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: float, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=1.0, note=note)
            bars.update(tasks[what], completed=done, note=note)

        yield report


@contextmanager
def _lines(console: Console) -> Iterator[ReportProgress]:
    """Yields `report` for logs: it prints a line for each new `what`, now and then one with a note, and one
    wherever nothing was printed for a while."""
    seen: dict[str, float] = {}
    log = _Log(console)

    def report(what: str, done: float, note: str = "") -> None:
        log.what, log.done = what, done
        now = monotonic()
        if what not in seen or (note and now - seen[what] >= LINE_SECONDS):
            seen[what] = now
            log.tell(f"{what}: {note}" if note else what)

    ended = Event()
    thread = Thread(target=log.go_on, args=(ended,), daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()


class _Log:
    """Prints lines on the work `what`, of which the share `done` (0 to 1) is finished."""

    def __init__(self, console: Console) -> None:
        self.what, self.done = "", 0.0
        self._console = console
        self._lines = 0

    def tell(self, line: str) -> None:
        self._lines += 1
        self._console.print(line)

    def go_on(self, ended: Event) -> None:
        """Prints how far the work is whenever nothing else was printed for SILENT_SECONDS."""
        before = seconds = 0
        while not ended.wait(SILENT_SECONDS):
            seconds += SILENT_SECONDS
            if self.what and self._lines == before:
                self.tell(f"{self.what}: {self.done:.0%}, {seconds} s so far")
            before = self._lines
