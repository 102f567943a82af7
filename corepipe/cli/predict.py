"""`corepipe predict`: the figures of a file's rows, as the cost model sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from corepipe.cli import options
from corepipe.cli.common import errors, progress_bar
from corepipe.neuron.profiles import profile as find_profile
from corepipe.planning.cases import Cases
from corepipe.planning.predict import Predictor
from corepipe.planning.rows import read, write

Rows = Annotated[Path, typer.Argument(help="A CSV file with a row for each figure.", dir_okay=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Write the rows here, with predictions.")]


def predict(rows: Rows, output: Output, profile: options.Profile = None) -> None:
    """Predict each row of a file: the same rows with `predicted`, in the row's unit, and `reason`.

    `predicted` is empty where nothing can be said; `reason` says why, or what a figure must be read with.
    """
    chosen = find_profile(profile) if profile else None
    table = read(rows)
    predictor = Predictor(cases=Cases(chosen))
    written: list[dict[str, str]] = []
    with progress_bar(errors()) as report:
        for number, row in enumerate(table.rows):
            report("predicting", number / len(table.rows))
            found = predictor.predict(row)
            value = "" if found.value is None else f"{found.value:.6g}"
            written.append({**row, "predicted": value, "reason": found.reason})
    columns = [name for name in table.columns if name not in {"predicted", "reason"}]
    write(output, [*columns, "predicted", "reason"], written)
    done = sum(bool(row["predicted"]) for row in written)
    errors().print(f"{done} of {len(written)} rows are predicted; written to {output}")
