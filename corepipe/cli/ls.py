"""Show emulated Neuron devices as neuron-ls does, and what a running server placed on them."""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import API_KEY, LOCAL_SERVER, as_json, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [
        option("--instance", str, "Instance size to show, instead of that of a server."),
        option("--url", str, f"URL of a running server; default: {LOCAL_SERVER}, if one answers."),
        API_KEY,
        as_json(),
    ]
