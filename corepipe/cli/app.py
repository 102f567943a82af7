"""The `corepipe` command: what it consists of, and how it ends.

Results go to stdout, progress and logs to stderr.  Exit codes: 0 success, 1 our fault, 2 what the user
got wrong, 3 it ran and a condition that the user set is not met.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup
from typer.main import get_group

from corepipe import __version__
from corepipe.cli.plain import write_plainly
from corepipe.errors import UserError, shown
from corepipe.signals import INTERRUPTED

COMMANDS = (
    "serve",
    "bench",
    "simulate",
    "ls",
    "top",
    "monitor",
    "plan",
    "profile",
    "pull",
    "predict",
    "validate",
    "fit",
    "cache",
    "fleet",
)
"""In the order of the help.  Each is a module here, with a function or a Typer of its own name in it."""

MAX_LINE = 4096
"""Characters of a line on stderr."""

MARKUP: Literal["rich"] = "rich"
"""Of help texts."""


class Imported(Mapping[str, Any]):
    """The commands by their names; a command is imported when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = _command(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _command(name: str) -> Any:
    """Click's command, or its group of commands."""
    found = getattr(import_module(f"corepipe.cli.{name}"), name)
    alone = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command()(found)
    return get_group(alone).commands[name]


class Commands(TyperGroup):
    """The group of commands that follow `corepipe`; its help imports all of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Imported()


app = typer.Typer(
    name="corepipe",
    cls=Commands,
    help="Serve a model on the Neuron hardware you don't have yet.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
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
    wrong = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    return f"{wrong}; see {error.ctx.command_path} --help" if error.ctx else wrong
