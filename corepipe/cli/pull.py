"""`corepipe pull`: gets a model into the user's cache."""

from __future__ import annotations

from typing import Annotated

import typer

from corepipe.models import hub


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="Model to download: a hub id such as org/name, all-minilm-l6-v2 or gemma-3-270m."
        ),
    ] = hub.DEFAULT_MODEL,
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="Accept the license of a model that asks for it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download a model into the cache and print where it is."""
    from corepipe.cli.run.pull import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(model, accept_license=accept_license, as_json=as_json)
