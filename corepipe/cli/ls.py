"""`corepipe ls`: the emulated devices, and the placement of a running server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column

from corepipe.cli import options
from corepipe.cli.common import errors, print_json, results
from corepipe.cli.tables import Figures
from corepipe.errors import UserError
from corepipe.neuron import catalog
from corepipe.neuron.ls import as_json, table

DEFAULT_INSTANCE = "inf2.xlarge"
CORE_COLUMNS = ("core", "stage", "rank", "layers", "heads", "kv heads", "weights", "KV a token")


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
    if placement is None and instance is None:
        errors().print(f"no server at {options.LOCAL_SERVER}: these are the devices of {DEFAULT_INSTANCE}")
    shown = catalog.instance(placement["instance"] if placement else instance or DEFAULT_INSTANCE)
    if as_json_:
        devices = json.loads(as_json(shown))
        print_json({"devices": devices, "placement": placement} if placement else devices)
        return
    typer.echo(table(shown))
    if placement:
        print_placement(results(), placement)


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


def print_placement(console: Console, placement: Mapping[str, Any]) -> None:
    """A line on the deployment and the cores of a replica: neighbours that hold the same share a row."""
    degrees = ", ".join(f"{name} {placement[name]}" for name in ("pipeline", "tensor", "data"))
    timed = placement["timing_model"] or placement["model"]
    console.print(
        f"{timed}, {placement['format']} ({placement['format_on_device']} on the device), "
        f"on {placement['instance']} (emulated, {placement['runtime_profile']}): {degrees}",
        markup=False,
    )
    console.print(placement["reason"], style="dim", markup=False)
    if placement["timing_model"]:
        console.print(f"time, memory and limits are {timed}'s, tokens {placement['model']}'s", markup=False)
    if placement["time_scale"] != 1.0:
        console.print(f"a second of the device takes {placement['time_scale']:g} s")
    for limit in placement["host_limits"]:
        console.print(limit, style="yellow", markup=False)
    cores = Figures(*(Column(name, justify="right") for name in CORE_COLUMNS))
    for (stage, *held), run in groupby(placement["cores"], key=_held):
        alike = list(run)
        numbers, ranks = (span([core[name] for core in alike]) for name in ("core", "rank"))
        cores.add_row(numbers, stage, ranks, *held)
    console.print(cores)


def _held(core: Mapping[str, Any]) -> tuple[str, ...]:
    """What is shown of a core beside its number and rank."""
    return (
        str(core["stage"]),
        span(core["layers"]),
        *(str(core[name]) for name in ("heads", "kv_heads")),
        _size(sum(core["weight_bytes"].values())),
        f"{core['kv_bytes_per_token'] / 1e3:.2f} kB",
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def span(numbers: Sequence[int]) -> str:
    """The first and the last of consecutive numbers, as `0-14`."""
    if not numbers:
        return "-"
    return f"{numbers[0]}-{numbers[-1]}" if numbers[0] != numbers[-1] else str(numbers[0])
