"""`corepipe validate`: how far the cost model is from measurements.  Fits nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from corepipe.cli import options
from corepipe.cli.common import errors, print_json, progress_bar
from corepipe.neuron.constants import IDEAL, provenance, shipped
from corepipe.neuron.profiles import profile as find_profile
from corepipe.planning.cases import Cases
from corepipe.planning.predict import Prediction, Predictor
from corepipe.planning.rows import read
from corepipe.planning.score import Cell, cells, pair

Rows = Annotated[Path, typer.Argument(help="A CSV file of measurements.", dir_okay=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

WIDTH = 132
"""Columns that the table takes where the output is not a terminal."""

Stored = Mapping[tuple[str, str, str], tuple[float, float]]


def validate(rows: Rows, profile: options.Profile = None, as_json: AsJson = False) -> None:
    """Score the cost model against measurements, cell by cell, with the plain roofline beside it."""
    chosen = find_profile(profile) if profile else None
    table, cases = read(rows), Cases(chosen)
    predictor = Predictor(cases=cases)
    plain = Predictor(constants=dict.fromkeys(shipped(), IDEAL), cases=cases)
    predicted: list[Prediction] = []
    baseline: list[Prediction] = []
    with progress_bar(errors()) as report:
        for number, row in enumerate(table.rows):
            report("predicting", number / len(table.rows))
            predicted.append(predictor.predict(row))
            baseline.append(plain.predict(row))
    found = cells(pair(table.rows, predicted, baseline))
    skipped = sum(p.value is None for p in predicted)
    if as_json:
        print_json(_document(found, len(table.rows), skipped))
        return
    console = wide_console()
    show(console, found, _stored())
    console.print(f"{len(table.rows) - skipped} of {len(table.rows)} rows are predicted; errors in percent.")


def _stored() -> Stored:
    """Cross-validation errors of the shipped constants: metric, instance, profile -> median and p90."""
    return {
        (cell["metric"], cell["instance"], cell["profile"]): (cell["median"], cell["p90"])
        for cell in provenance().get("cells", ())
    }


def _document(found: Sequence[Cell], total: int, skipped: int) -> dict[str, object]:
    known = provenance()
    return {
        "emulated": True,
        "rows": total,
        "not_predicted": skipped,
        "cells": [cell.as_json() for cell in found],
        "cross_validation": known.get("cells", []),
        "constants_date": known.get("date"),
    }


def wide_console() -> Console:
    """The terminal, or a file with room for the table."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def show(console: Console, found: Sequence[Cell], stored: Stored | None = None) -> None:
    """Prints the cells; `stored`: cross-validation errors to stand beside them."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("metric", "instance", "profile"):
        table.add_column(name, no_wrap=True)
    names = [
        "n",
        "median",
        "p90",
        "bias",
        *(["left out", "p90"] if stored else []),
        "roofline",
        "p90",
        "noise",
    ]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for number, cell in enumerate(found):
        if number and not cell.validated and found[number - 1].validated:
            table.add_section()
            table.add_row("not validated: few rows, or tails")
        table.add_row(*_cells(cell, stored))
    console.print(table)


def _cells(cell: Cell, stored: Stored | None) -> list[str]:
    apart = (stored or {}).get((cell.metric, cell.instance, cell.profile), (None, None))
    shares = [cell.median, cell.p90, cell.bias, *(apart if stored else ())]
    shares += [cell.roofline_median, cell.roofline_p90, cell.noise]
    return [cell.metric, cell.instance, cell.profile, str(cell.n), *map(_percent, shares)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
