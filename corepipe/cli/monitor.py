"""`corepipe monitor`: a running server's emulated devices, as neuron-monitor shows real ones."""

from __future__ import annotations

from typing import Annotated

import typer

from corepipe.cli.flags import options

Period = Annotated[str, typer.Option("--period", help="Time between two lines, such as 5s or 500ms.")]


def monitor(
    url: options.ServerUrl = options.LOCAL_SERVER, api_key: options.ApiKey = None, period: Period = "5s"
) -> None:
    """Print one JSON document a line about the emulated devices of a running server, as neuron-monitor does.

    It ends when it is interrupted, or when its output is closed.
    """
    from corepipe.cli.run.monitor import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(url, api_key, period)
