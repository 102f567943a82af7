"""Join machines into a fleet that serves at one endpoint; needs corepipe[ray]."""

from __future__ import annotations

from corepipe.cli.flags.options import argument, as_json, option

ADDRESS = argument("address", str, "HOST:PORT of the fleet's head.")
NODE_HOST = option("--host", str, "Address of this machine, as the others see it; default: as Ray finds it.")

COMMANDS = {
    "head": (
        "Start a fleet: this machine is its head, until Ctrl-C.\n\n"
        "The head computes nothing: run `corepipe fleet join` on this machine as well if it is to compute.",
        (NODE_HOST, option("--port", int, "Port to listen on.", 6379, min=1, max=65535)),
    ),
    "join": (
        "Join this machine to a fleet, until Ctrl-C: a server of the fleet may run an engine on it.",
        (
            ADDRESS,
            NODE_HOST,
            option("--name", str, "Name of this machine in the fleet."),
            option("--front", bool, "Use this machine only for a server: no engine computes on it."),
        ),
    ),
    "status": ("Show the machines of a fleet, and what runs on them.", (ADDRESS, as_json())),
    "drain": (
        "Take a machine out of service: its engine finishes its requests, and gets no more.",
        (ADDRESS, argument("node", str, "Name of the machine.")),
    ),
}
"""The commands, their helps and flags."""
