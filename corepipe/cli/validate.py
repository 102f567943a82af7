"""`corepipe validate`: how far the cost model is from measurements.  Fits nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Rows = Annotated[Path, typer.Argument(help="CSV file of measurements.", dir_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags.fields import of_engine, parameters  # noqa: PLC0415 -- heavy: a help does without

    return parameters(of_engine("profile"))


def validate(ctx: typer.Context, rows: Rows, as_json: AsJson = False) -> None:
    """Score the cost model against measurements, cell by cell, with the plain roofline beside it."""
    from corepipe.cli.run.validate import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(rows, ctx.params["profile"], as_json=as_json)
