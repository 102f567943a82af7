"""`corepipe pull`: gets a model into the user's cache."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from corepipe.cli.common import errors, print_json, progress_bar
from corepipe.models import hub


def pull(
    model: Annotated[
        str, typer.Argument(help="A hub id such as org/name; without it, the default model.")
    ] = hub.DEFAULT_MODEL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download a model into the cache and print where it is."""
    with progress_bar(errors()) as report:
        path = hub.resolve(model, report)
    if as_json:
        print_json({"model": model, "path": str(path)})
    else:
        sys.stdout.write(f"{path}\n")  # click's echo forces UTF-8 where there is ASCII alone
