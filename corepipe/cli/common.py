"""What the commands share: where progress and results go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


def errors() -> Console:
    """The console for progress, logs and errors: stderr.

    Lines are as long as they are: a wrapped URL cannot be copied, nor found by a program.
    """
    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(result: object) -> None:
    """A command's result for machines, on stdout."""
    typer.echo(json.dumps(result, indent=2))


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Yields `report(what, done)`, `done` from 0 to 1: a bar for each `what`; in a log, a line."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: float) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=1.0)
            bars.update(tasks[what], completed=done)

        yield report


def _lines(console: Console) -> Callable[[str, float], None]:
    """For logs: a line when something else is being done."""
    seen: set[str] = set()

    def report(what: str, done: float) -> None:  # noqa: ARG001
        if what not in seen:
            seen.add(what)
            console.print(what)

    return report
