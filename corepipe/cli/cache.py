"""`corepipe cache`: shows the cache of models and packed weights, and removes parts of it."""

from __future__ import annotations

from typing import Annotated

import typer

cache = typer.Typer(help="Show what the cache holds, or remove some of it.")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@cache.command()
def ls(as_json: AsJson = False) -> None:
    """Show the fetched models and packed weights, their sizes and when they were last used."""
    from corepipe.cli.run.cache import show  # noqa: PLC0415 -- heavy: the other commands do without

    show(as_json=as_json)


@cache.command()
def prune(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Remove what was not used for this long, such as 12h or 30d."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            help="Remove the least recently used until the cache has this size, such as 500MB or 2GB.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Remove everything that no process uses.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove models and packed weights that no process uses."""
    from corepipe.cli.run.cache import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(older_than, max_size, everything=everything, dry_run=dry_run, as_json=as_json)
