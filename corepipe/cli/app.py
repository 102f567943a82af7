"""The `corepipe` command: its subcommands, its errors and its exit codes.

Results go to stdout, progress and logs to stderr.  Exit codes: 0 success, 1 our fault, 2 what the user
got wrong, 3 it ran and a condition that the user set is not met.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from importlib import import_module
from inspect import Parameter, cleandoc
from shutil import get_terminal_size
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from corepipe.cli.flags.options import Given, escaped, parameters
from corepipe.cli.output.plain import broken, open_closed_streams, write_plainly
from corepipe.errors import UserError, shown
from corepipe.imports import uncollected
from corepipe.signals import INTERRUPTED
from corepipe.version import __version__

COMMANDS = (
    "serve",
    "bench",
    "batch",
    "simulate",
    "ls",
    "top",
    "monitor",
    "plan",
    "profile",
    "nki",
    "pull",
    "predict",
    "validate",
    "fit",
    "cache",
    "fleet",
)
"""The commands in the order of the help.

Each is a module here, whose docstring is the help and whose function `flags` makes its flags; or a group of
commands, whose helps and flags are in its COMMANDS.  The module of its name in `run` does the work.
"""

MAX_LINE = 4096
"""Characters of a line on stderr."""

BOXES_WIDTH = 120
"""Columns of a terminal in which all flags fit into the boxes of a help."""

MARKUP: Literal["rich"] = "rich"
"""The markup of help texts."""


class LazyCommands(Mapping[str, Any]):
    """The commands by their names; a command is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _command(name: str) -> Any:
    """Imports a command and returns click's command, or its group of commands."""
    module = import_module(f"corepipe.cli.{name}")
    about = cleandoc(module.__doc__ or "")
    if hasattr(module, "flags"):
        return Command(name, about, module.flags, (name, "run"))
    parts: dict[str, Any] = {
        part: Command(part, told, partial(list, flags), (name, part))
        for part, (told, flags) in module.COMMANDS.items()
    }
    return TyperGroup(name=name, help=escaped(about), commands=parts, rich_markup_mode=MARKUP)


class Command(TyperCommand):
    """A command, whose flags are made when they are needed: many are fields of configurations, which import
    pydantic.

    work: the module in `run` and its function that does the work.  In a narrow terminal the help has no
    boxes, which would cut its flags there.
    """

    def __init__(
        self, name: str, about: str, flags: Callable[[], list[Parameter]], work: tuple[str, str]
    ) -> None:
        super().__init__(name, help=about, rich_markup_mode=MARKUP)
        self._flags = flags
        self._work = work
        del self.params

    @cached_property
    def params(self) -> list[Any]:  # type: ignore[override]
        """The arguments and then the flags."""
        return parameters(self._flags())

    def invoke(self, ctx: Any) -> None:
        """Does the command's work."""
        module, function = self._work
        with uncollected():
            found = import_module(f"corepipe.cli.run.{module}")
        getattr(found, function)(Given(ctx.params, {one.name: one.get_default(ctx) for one in self.params}))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the help; panels are headings where there are no boxes."""
        if get_terminal_size().columns < BOXES_WIDTH:
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)
        formatter.buffer[:] = [part.replace("\\[", "[") for part in formatter.buffer]  # rich's escapes

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the flags, by their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or f"{parameter.param_type_name.title()}s"
                panels.setdefault(panel, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


class CommandGroup(TyperGroup):
    """The group of commands that follow `corepipe`; its help imports all of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = LazyCommands()


app = typer.Typer(
    name="corepipe",
    cls=CommandGroup,
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

    So is a result that cannot be written, with 1; it is no line where the reader has left.
    Raises KeyboardInterrupt where a command was interrupted.
    """
    open_closed_streams()
    write_plainly()
    try:
        code = _run()
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError) and _can_write():
            raise
        _discard_output()
        if not isinstance(error, BrokenPipeError):
            _complain(f"standard output: {error.strerror}")
        code = 1
    if code == INTERRUPTED:  # typer has made an exit code of it
        raise KeyboardInterrupt
    sys.exit(code)


def _run() -> int | None:
    """Runs a command and returns its exit code."""
    try:
        code: int | None = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except UserError as error:
        lines = (shown(line, MAX_LINE) for line in error.message.splitlines())  # it may quote a file
        _complain("\n".join(lines))
        return 2
    except _USAGE_ERROR as error:
        _complain(_usage(error))
        return 2
    return code


def _complain(message: str) -> None:
    """Prints an error on stderr, as one line; in a terminal it is broken between words."""
    line = f"corepipe: {message}"
    with suppress(OSError):
        print(broken(line, get_terminal_size().columns) if sys.stderr.isatty() else line, file=sys.stderr)  # noqa: T201


def _can_write() -> bool:
    """Tells whether stdout takes a line break, so that something else could not be written."""
    try:
        print(flush=True)  # noqa: T201
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Discards what stdout still holds, so that the interpreter's last flush succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""click's UsageError; typer brings a click of its own, or takes the one that is installed."""


def _usage(error: Any) -> str:
    """Returns the line that says what is wrong with a flag, and which help to read."""
    wrong = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    return f"{wrong}; see {error.ctx.command_path} --help" if error.ctx else wrong
