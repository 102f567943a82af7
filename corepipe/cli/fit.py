"""`corepipe fit`: a user's own measurements refine the constants, into a profile file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli import options

Rows = Annotated[Path, typer.Argument(help="A CSV file of measurements.", dir_okay=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Write the profile here.")]


def fit(rows: Rows, output: Output, profile: options.Profile = None) -> None:
    """Refine the cost model's constants with your own measurements, into a profile that commands take.

    Few rows move the constants little.  The profile is that of --profile, or of vllm-neuron, with its own
    constants.
    """
    from corepipe.cli.run.fit import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(rows, output, profile)
