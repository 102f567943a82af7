"""Watch a running server: emulated cores and their engines, memory, requests, tokens a second, cost.

q or Ctrl-C ends it.  Where the output is no terminal, it prints the state once.
"""

from __future__ import annotations

from inspect import Parameter

from corepipe.cli.flags.options import API_KEY, SERVER_URL, option


def flags() -> list[Parameter]:
    """Returns the flags."""
    return [
        SERVER_URL,
        API_KEY,
        option("--interval", str, "Time between two updates, such as 1s or 500ms.", "1s"),
    ]
