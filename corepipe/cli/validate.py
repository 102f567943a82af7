"""`corepipe validate`: how far the cost model is from measurements.  Fits nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli.flags import options

Rows = Annotated[Path, typer.Argument(help="A CSV file of measurements.", dir_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def validate(rows: Rows, profile: options.Profile = None, as_json: AsJson = False) -> None:
    """Score the cost model against measurements, cell by cell, with the plain roofline beside it."""
    from corepipe.cli.run.validate import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(rows, profile, as_json=as_json)
