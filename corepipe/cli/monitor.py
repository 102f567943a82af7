"""Print one JSON document a line about the emulated devices of a running server, as neuron-monitor does.

It ends when it is interrupted, or when its output is closed.
"""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import API_KEY, SERVER_URL, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [
        SERVER_URL,
        API_KEY,
        option("--period", str, "Time between two lines, such as 5s or 500ms.", "5s"),
    ]
