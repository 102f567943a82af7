"""`corepipe fleet`: machines that serve together, joined by Ray."""

from __future__ import annotations

from typing import Annotated

import typer

fleet = typer.Typer(help="Join machines into a fleet that serves at one endpoint; needs corepipe\\[ray].")

Head = Annotated[str, typer.Argument(help="HOST:PORT of the fleet's head.")]
NodeHost = Annotated[
    str | None,
    typer.Option("--host", help="Address of this machine, as the others see it; default: as Ray finds it."),
]


@fleet.command()
def head(
    host: NodeHost = None,
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 6379,
) -> None:
    """Start a fleet: this machine is its head, until Ctrl-C.

    The head computes nothing: run `corepipe fleet join` on this machine as well if it is to compute.
    """
    from corepipe.cli.run.fleet import run_head  # noqa: PLC0415 -- heavy

    run_head(host, port)


@fleet.command()
def join(
    address: Head,
    host: NodeHost = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of this machine in the fleet.")] = None,
    front: Annotated[
        bool, typer.Option("--front", help="Use this machine only for a server: no engine computes on it.")
    ] = False,
) -> None:
    """Join this machine to a fleet, until Ctrl-C: a server of the fleet may run an engine on it."""
    from corepipe.cli.run.fleet import run_join  # noqa: PLC0415 -- heavy

    run_join(address, host, name, computes=not front)


@fleet.command()
def status(
    address: Head,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show the machines of a fleet, and what runs on them."""
    from corepipe.cli.run.fleet import show_status  # noqa: PLC0415 -- heavy

    show_status(address, as_json=as_json)


@fleet.command()
def drain(
    address: Head,
    node: Annotated[str, typer.Argument(help="Name of the machine.")],
) -> None:
    """Take a machine out of service: its engine finishes its requests, and gets no more."""
    from corepipe.cli.run.fleet import drain_node  # noqa: PLC0415 -- heavy

    drain_node(address, node)
