"""`corepipe ls`: the emulated devices, and the placement of a running server."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from corepipe.cli import options
from corepipe.cli.common import errors, print_json, results
from corepipe.cli.placement import print_placement
from corepipe.errors import UserError
from corepipe.neuron import catalog
from corepipe.neuron.ls import as_json, table

DEFAULT_INSTANCE = "inf2.xlarge"


def ls(
    instance: Annotated[
        str | None, typer.Option("--instance", help="Show this instance size instead of a server's.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help=f"A running server; by default {options.LOCAL_SERVER} if one answers."),
    ] = None,
    api_key: options.ApiKey = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show emulated Neuron devices as neuron-ls does, and what a running server placed on them."""
    placement = None if instance else _placement(url, api_key)
    models = [] if placement is None else placement.get("models", [placement])
    if not models and instance is None:
        errors().print(f"no server at {options.LOCAL_SERVER}: these are the devices of {DEFAULT_INSTANCE}")
    shown = catalog.instance(models[0]["instance"] if models else instance or DEFAULT_INSTANCE)
    if as_json_:
        devices = json.loads(as_json(shown))
        print_json({"devices": devices, "placement": placement} if placement else devices)
        return
    typer.echo(table(shown))
    for placed in models:
        if "name" in placed:
            results().print(f"{placed['name']}:", markup=False)
        print_placement(results(), placed)


def _placement(url: str | None, api_key: str | None) -> dict[str, Any] | None:
    """The server's placement; None where no URL was given and nothing answers at the usual place."""
    import httpx  # noqa: PLC0415 -- heavy: the other commands do without

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url or options.LOCAL_SERVER}/v1/placement", headers=headers, timeout=5.0)
        answer.raise_for_status()
        placement: dict[str, Any] = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, json.JSONDecodeError) as error:
        if url is None:
            return None
        raise UserError(f"--url {url}: no corepipe server answers there ({error})", "url") from error
    return placement
