"""Asks a server for its placement, and prints that and the devices: what `corepipe ls` does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import typer

from corepipe.cli.flags.options import LOCAL_SERVER
from corepipe.cli.output.common import errors, print_json, results
from corepipe.cli.output.placement import print_placement
from corepipe.errors import UserError
from corepipe.neuron.chips import catalog
from corepipe.neuron.timing import ls as devices

DEFAULT_INSTANCE = "inf2.xlarge"


def run(given: Mapping[str, Any]) -> None:
    """Shows the devices of an instance, or of what a server placed.  Raises UserError."""
    instance = given["instance"]
    placement = None if instance else _placement(given["url"], given["api_key"])
    models = [] if placement is None else placement.get("models", [placement])
    if placement is None and instance is None:
        errors().print(f"no server answers at {LOCAL_SERVER}: showing the devices of {DEFAULT_INSTANCE}")
    shown = catalog.instance(models[0]["instance"] if models else instance or DEFAULT_INSTANCE)
    if given["json"]:
        listed = json.loads(devices.as_json(shown))
        print_json({"devices": listed, "placement": placement} if placement else listed)
        return
    typer.echo(devices.table(shown))
    for placed in models:
        if "name" in placed:
            results().print(
                f"{placed['name']} ({placed['state']}):" if "state" in placed else f"{placed['name']}:"
            )
        print_placement(results(), placed)


def _placement(url: str | None, api_key: str | None) -> dict[str, Any] | None:
    """The server's placement; None where no URL was given and nothing answers at the usual place."""
    from corepipe.cli.run.reading import MonitoredServer, UnreachableError  # noqa: PLC0415 -- heavy: who names an instance does without

    try:
        with closing(MonitoredServer(url or LOCAL_SERVER, api_key)) as server:
            return server.placement()
    except UnreachableError as error:
        if url is None:
            return None
        raise UserError(f"--url {url}: no corepipe server answers there ({error})", "url") from error
