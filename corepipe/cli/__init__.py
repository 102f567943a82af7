"""The `corepipe` command: one file a command.

Results go to stdout, progress and logs to stderr.  Exit codes: 0 success, 1 our fault, 2 what the user
got wrong, 3 it ran and a condition that the user set is not met.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import click
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


def _print_version(wanted: bool) -> None:  # noqa: FBT001
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
    """Entry point: maps what went wrong to an exit code and one line."""
    try:
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        _fail(error.message, 2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, code: int) -> None:
    print(f"corepipe: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
