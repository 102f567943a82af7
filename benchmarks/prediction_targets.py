"""Errors by kind of figure beside their targets, and the rows that miss them.

    python benchmarks/prediction_targets.py ROWS.csv              # medians and 90th percentiles
    python benchmarks/prediction_targets.py ROWS.csv --beyond     # and each row beyond a p90 that is wanted

Each row is predicted with the stored constants that know nothing of its family, as `corepipe validate` does
in its column "left out"; rows that lack what a prediction needs, and tail percentiles, count in none.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.neuron.chips.constants import folds
from corepipe.planning.calibration import rows, stacks
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.residuals import left_out
from corepipe.planning.calibration.rows import Raw, text
from corepipe.planning.calibration.score import Scored, pair

WANTED: Mapping[str, tuple[float, float]] = {
    "decode": (0.05, 0.15),
    "first token": (0.15, 0.40),
    "throughput": (0.06, 0.20),
    "encoders": (0.07, 0.14),
    "load throughput": (0.12, 0.30),
    "load first token": (0.20, 0.60),
    "convolutions": (0.15, 0.35),
}
"""Targets: median and 90th percentile of errors, at most."""

VALIDATED = ("inf2", "trn1")
"""Instances with enough rows; inf1 and trn2 have few."""

FIRST, DECODE = {"ttft", "ttft_whole_batch"}, {"tpot", "itl", "per_token_latency"}

TOLD = ("instance", "model", "sdk", "parallelism", "batch_size", "input_len", "metric", "arrival", "value")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="measurements, as fit_cost_model.py takes them")
    parser.add_argument("--beyond", action="store_true", help="also the rows beyond a p90 that is wanted")
    given = parser.parse_args()
    found, console = by_kind(given.rows), results()
    show(console, found)
    if given.beyond:
        for kind, scored in found.items():
            beyond(console, kind, scored)


def by_kind(path: Path) -> dict[str, list[Scored]]:
    """Returns the rows of each kind that has a target, predicted without their family."""
    cases, table = Cases(), tuple(completed(rows.read(path).rows))
    predictor_of = left_out(cases, folds())
    predicted = [predictor_of(row).predict(row) for row in table]
    found: defaultdict[str, list[Scored]] = defaultdict(list)
    for one in pair(table, predicted):
        if not one.assumed and text(one.row, "percentile") in {"", "mean", "p50"}:
            found[kind_of_row(one.row)].append(one)
    return {kind: found[kind] for kind in WANTED}


def kind_of_row(row: Raw) -> str:
    """Returns the kind of figure that a row holds, one of those in WANTED."""
    metric, task = text(row, "metric"), text(row, "task")
    if task in stacks.ENCODERS:
        return "encoders" if task == "encoder" else "convolutions"
    figure = "first token" if metric in FIRST else "decode" if metric in DECODE else "throughput"
    figure = "latency" if metric in {"latency", "request_latency"} else figure
    return f"load {figure}" if text(row, "arrival") or task.startswith("serving") else figure


def show(console: Console, found: Mapping[str, list[Scored]]) -> None:
    """Prints the errors on all instances, and on those with enough rows."""
    names = ("rows", "median / p90", "wanted", "", "inf2 and trn1", "")
    table = Figures("errors in %", *(f">{name}" for name in names))
    for kind, scored in found.items():
        alike = [one for one in scored if text(one.row, "instance").startswith(VALIDATED)]
        wanted = " / ".join(f"{100 * most:g}" for most in WANTED[kind])
        figures, met = _told(kind, scored)
        table.add_row(kind, str(len(scored)), figures, wanted, met, *_told(kind, alike))
    console.print(table)


def _told(kind: str, scored: list[Scored]) -> tuple[str, str]:
    errors = [abs(one.error()) for one in scored]
    figures = float(np.median(errors)), float(np.quantile(errors, 0.9))
    met = all(figure <= most for figure, most in zip(figures, WANTED[kind], strict=True))
    return " / ".join(f"{100 * figure:.1f}" for figure in figures), "met" if met else "missed"


def beyond(console: Console, kind: str, scored: list[Scored]) -> None:
    """Prints the rows whose error is beyond the target for p90, the worst first."""
    most = WANTED[kind][1]
    worst = sorted((one for one in scored if abs(one.error()) > most), key=lambda one: -abs(one.error()))
    console.print(f"{kind}: {len(worst)} of {len(scored)} rows are beyond {most:.0%}")
    for one in worst:
        cells = " ".join(text(one.row, name)[:24] or "-" for name in TOLD)
        console.print(f"  {one.error():+.1%} {cells}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
