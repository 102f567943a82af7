"""Writes the tables of flags in docs/cli.md from the commands: `python -m tests.cli_page`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from corepipe.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

TABLE = re.compile(r"\| flag \| default \| what \|\n\|---\|---\|---\|\n(?:\|.*\n)*")


@cache
def named(group: Any = None, before: str = "") -> dict[str, Any]:
    """Returns every command by its name; `cache ls` with its group's."""
    found: dict[str, Any] = {}
    for name, one in (group or typer.main.get_command(app)).commands.items():
        found |= named(one, f"{before}{name} ") if hasattr(one, "commands") else {before + name: one}
    return found


def flags(command: Any) -> dict[str, tuple[str, str]]:
    """Returns the names of a command's parameters, with their defaults and helps, as the page shows them."""
    shown = {}
    for parameter in command.params:
        names = [*parameter.opts, *parameter.secondary_opts]
        default = getattr(parameter.default, "value", parameter.default)
        text = "" if default is None or isinstance(default, bool) else f"`{default}`"
        shown[", ".join(f"`{n if n[0] == '-' else n.upper()}`" for n in names)] = (text, parameter.help)
    return shown


def page(text: str) -> str:
    """Returns the page with the tables that these commands have now."""
    parts = re.split(r"(?m)^(?=## )", text)
    return "".join(_section(part) if part.startswith("## corepipe ") else part for part in parts)


def _section(text: str) -> str:
    name = text.splitlines()[0].removeprefix("## corepipe ")
    rows = "".join(
        f"| {flag} | {default} | {what} |\n" for flag, (default, what) in flags(named()[name]).items()
    )
    return TABLE.sub(lambda _: f"| flag | default | what |\n|---|---|---|\n{rows}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
