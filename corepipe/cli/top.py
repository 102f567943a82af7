"""`corepipe top`: a live view of a running server, as neuron-top is one of real devices."""

from __future__ import annotations

from typing import Annotated

import typer

from corepipe.cli.flags import options

Interval = Annotated[str, typer.Option("--interval", help="Time between two updates, such as 1s or 500ms.")]


def top(
    url: options.ServerUrl = options.LOCAL_SERVER, api_key: options.ApiKey = None, interval: Interval = "1s"
) -> None:
    """Watch a running server: emulated cores and their engines, memory, requests, tokens a second, cost.

    q or Ctrl-C ends it.  Where the output is no terminal, it prints the state once.
    """
    from corepipe.cli.run.top import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(url, api_key, interval)
