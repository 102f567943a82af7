"""The `corepipe` command: one file a command.

Results go to stdout, progress and logs to stderr.  Exit codes: 0 success, 1 our fault, 2 what the user
got wrong, 3 it ran and a condition that the user set is not met.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from corepipe import __version__
from corepipe.cli.ls import ls
from corepipe.cli.pull import pull
from corepipe.cli.serve import serve
from corepipe.errors import UserError

app = typer.Typer(
    name="corepipe",
    help="Serve a model on the Neuron hardware you don't have yet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"corepipe {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve a model on the Neuron hardware you don't have yet."""


app.command()(serve)
app.command()(ls)
app.command()(pull)


def main() -> None:
    """Entry point: what the user got wrong is one line and exit code 2, as with a wrong flag."""
    try:
        app()
    except UserError as error:
        print(f"corepipe: {error.message}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone; let the interpreter's last flush succeed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
