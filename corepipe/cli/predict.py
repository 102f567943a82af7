"""`corepipe predict`: the figures of a file's rows, as the cost model sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Rows = Annotated[Path, typer.Argument(help="CSV file with a row for each figure to predict.", dir_okay=False)]
Output = Annotated[
    Path, typer.Option("--output", "-o", help="CSV file to write the rows to, with predictions.")
]


def setting_flags() -> list[Any]:
    """Returns the flags that are fields of the engine's configuration."""
    from corepipe.cli.flags.fields import of_engine, parameters  # noqa: PLC0415 -- heavy: a help does without

    return parameters(of_engine("profile"))


def predict(ctx: typer.Context, rows: Rows, output: Output) -> None:
    """Predict each row of a file: the same rows with `predicted`, in the row's unit, and `reason`.

    `predicted` is empty where nothing can be said; `reason` says why, or what a figure must be read with.
    """
    from corepipe.cli.run.predict import run  # noqa: PLC0415 -- heavy: the other commands do without

    run(rows, output, ctx.params["profile"])
