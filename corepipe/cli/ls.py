"""`corepipe ls`: the emulated devices, and the placement of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from corepipe.cli.flags import options


def ls(
    instance: Annotated[
        str | None, typer.Option("--instance", help="Instance size to show, instead of that of a server.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", help=f"URL of a running server; default: {options.LOCAL_SERVER}, if one answers."
        ),
    ] = None,
    api_key: options.ApiKey = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show emulated Neuron devices as neuron-ls does, and what a running server placed on them."""
    from corepipe.cli.run.ls import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(instance, url, api_key, as_json=as_json_)
