"""`corepipe fleet`: machines that serve together, joined by Ray."""

from __future__ import annotations

from typing import Annotated

import typer

fleet = typer.Typer(help="Join machines into a fleet that serves at one endpoint; needs corepipe\\[ray].")

Head = Annotated[str, typer.Argument(help="The head's HOST:PORT.")]
NodeHost = Annotated[
    str | None,
    typer.Option("--host", help="This machine's address, as the others see it; default: Ray's guess."),
]


@fleet.command()
def head(
    host: NodeHost = None,
    port: Annotated[int, typer.Option("--port", help="Port to listen on.", min=1, max=65535)] = 6379,
) -> None:
    """Start a fleet: this machine keeps its books, until Ctrl-C.

    It computes nothing by itself: run `corepipe fleet join` here too if it is to.
    """
    from corepipe.cli.run.fleet import run_head  # noqa: PLC0415 -- heavy

    run_head(host, port)


@fleet.command()
def join(
    address: Head,
    host: NodeHost = None,
    name: Annotated[str | None, typer.Option("--name", help="What this machine is called there.")] = None,
    front: Annotated[
        bool, typer.Option("--front", help="For a server on this machine alone: nothing computes here.")
    ] = False,
) -> None:
    """Offer this machine to a fleet, until Ctrl-C: a server may put an engine on it."""
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
    node: Annotated[str, typer.Argument(help="The machine, by its name.")],
) -> None:
    """Take a machine out of service: its engine answers what it has, and gets nothing more."""
    from corepipe.cli.run.fleet import drain_node  # noqa: PLC0415 -- heavy

    drain_node(address, node)
