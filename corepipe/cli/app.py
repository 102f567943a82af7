"""The `corepipe` command: what it consists of, and how it ends.

Results go to stdout, progress and logs to stderr.  Exit codes: 0 success, 1 our fault, 2 what the user
got wrong, 3 it ran and a condition that the user set is not met.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from corepipe import __version__
from corepipe.cli.bench import bench
from corepipe.cli.cache import cache
from corepipe.cli.fit import fit
from corepipe.cli.fleet import fleet
from corepipe.cli.ls import ls
from corepipe.cli.monitor import monitor
from corepipe.cli.plain import write_plainly
from corepipe.cli.plan import plan
from corepipe.cli.predict import predict
from corepipe.cli.profile import profile
from corepipe.cli.pull import pull
from corepipe.cli.serve import serve
from corepipe.cli.simulate import simulate
from corepipe.cli.top import top
from corepipe.cli.validate import validate
from corepipe.errors import UserError, shown
from corepipe.signals import INTERRUPTED

MAX_LINE = 4096
"""Characters of a line on stderr."""

app = typer.Typer(
    name="corepipe",
    help="Serve a model on the Neuron hardware you don't have yet.",
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
app.command()(bench)
app.command()(simulate)
app.command()(ls)
app.command()(top)
app.command()(monitor)
app.command()(plan)
app.command()(profile)
app.command()(pull)
app.add_typer(cache, name="cache")
app.add_typer(fleet, name="fleet")
app.command()(predict)
app.command()(validate)
app.command()(fit)


def main() -> None:
    """Runs the command line: what the user got wrong is one line and exit code 2.

    Raises KeyboardInterrupt where a command was interrupted.
    """
    write_plainly()
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except UserError as error:
        lines = (shown(line, MAX_LINE) for line in error.message.splitlines())  # it may quote a file
        print("corepipe: " + "\n".join(lines), file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except _USAGE_ERROR as error:
        print(f"corepipe: {_usage(error)}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output is gone; let the interpreter's last flush succeed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    if code == INTERRUPTED:  # typer has made an exit code of it
        raise KeyboardInterrupt
    sys.exit(code)


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""click's UsageError; typer brings a click of its own, or takes the one that is installed."""


def _usage(error: Any) -> str:
    """What is wrong with a flag, and where to read on."""
    wrong = " ".join(error.format_message().split()).rstrip(".")
    return f"{wrong}; see {error.ctx.command_path} --help" if error.ctx else wrong
