"""Writes the errors that intervals are made of, and reports how often those intervals contain a measurement.

    python benchmarks/residuals.py ROWS.csv           # writes neuron/timing/residuals.json: run it after any
    change python benchmarks/residuals.py ROWS.csv --print   # writes nothing

Each row is predicted with the constants of its folds, which fit_cost_model.py stored beside the constants,
and without the rules that its fold does not bear out.  The file of measurements stays outside the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from statistics import median

import numpy as np
from prediction_rules import by_row, gains, without
from rich.console import Console

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.cli.run.validate import show_coverage, show_decisions
from corepipe.neuron.chips.constants import folds
from corepipe.neuron.timing.uncertainty import COLUMNS, FILE, GUESSED, LEVEL, as_rows
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.coverage import TAILS, by_steps, coverage, left_out
from corepipe.planning.calibration.decisions import decisions
from corepipe.planning.calibration.fit import usable
from corepipe.planning.calibration.physics import consistent
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.residuals import MeasuredRow, measured, residuals
from corepipe.planning.calibration.residuals import left_out as predictor_of
from corepipe.planning.calibration.rows import Raw, campaign, family, text

CHECKED = (
    "instance", "model", "task", "dtype", "parallelism", "batch_size", "input_len", "output_len", "metric",
    "unit", "percentile", "sdk", "seq_len", "arrival", "users", "rate",
)  # fmt: skip
"""Columns of a row that is predicted again."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="measurements, as fit_cost_model.py takes them")
    parser.add_argument("--print", action="store_true", help="write nothing")
    given = parser.parse_args()
    cases = Cases()
    known = consistent(tuple(completed(rows.read(given.rows).rows)), cases)
    found = judged(known, cases)
    errors = residuals(found)
    held = left_out(errors)
    console = results()
    show_coverage(console, coverage(held), LEVEL)
    show_steps(console, by_steps(held))
    show_decisions(console, decisions(found, held))
    if not given.print:
        document = {
            "rows_sha256": hashlib.sha256(given.rows.read_bytes()).hexdigest(),
            "level": LEVEL,
            "coverage": [one.as_json() for one in coverage(held)],
            "decisions": decisions(found, held).as_json(),
            "scores": scores(found),
            "checks": checks(found, cases),
            "columns": COLUMNS,
            "residuals": as_rows(errors),
        }
        FILE.write_text(_lines(document))


def show_steps(console: Console, found: Mapping[int, tuple[int, float, float, float]]) -> None:
    """Prints whether intervals are wider, and errors larger, for runs farther from what was measured."""
    table = Figures("steps away", ">runs", ">within", ">width", ">mean |log error|")
    for steps, (runs, share, width, error) in found.items():
        table.add_row(str(steps), str(runs), f"{share:.1%}", f"x {width:.2f}", f"{error:.2f}")
    console.print(table)


def judged(known: Sequence[Raw], cases: Cases) -> list[MeasuredRow]:
    """Returns the rows, each with the larger of its errors with constants that were fitted without its
    family, and without its campaign; and without the rules that the other families and campaigns alone do not
    bear out."""
    whole = by_row(known, measured(known, lambda _: Predictor(cases=cases)))
    folds_ = folds()
    ways = [measured(known, predictor_of(cases, folds_, name_of=name_of)) for name_of in (family, campaign)]
    off = without(known, usable(known, cases))
    gained = {rule: gains(known, whole, errors) for rule, errors in off.items()}
    numbers = {id(row): number for number, row in enumerate(known)}
    found = []
    for pair in zip(*ways, strict=True):
        worst = max(pair, key=lambda one: abs(one.error))
        number, owner = numbers[id(worst.row)], (family(worst.row), campaign(worst.row))
        dropped = [rule for rule, gain in gained.items() if sum(gain.values()) - gain[owner] <= 0]
        error = worst.error + sum(off[rule][number] - whole[number] for rule in dropped)
        found.append(replace(worst, error=error))
    return found


def scores(found: Sequence[MeasuredRow]) -> list[dict[str, object]]:
    """Returns median and 90th percentile of the relative errors of the rows, by kind of figure; rows that do
    not state all that a prediction needs are apart."""
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for one in found:
        assumed = GUESSED * one.point.profile.endswith(GUESSED)
        kinds[one.point.kind + TAILS * one.point.tail + assumed].append(abs(exp(-one.error) - 1))
    return [
        {"kind": kind, "rows": len(errors), "median": median(errors), "p90": float(np.quantile(errors, 0.9))}
        for kind, errors in sorted(kinds.items())
    ]


def checks(found: Sequence[MeasuredRow], cases: Cases) -> list[Mapping[str, object]]:
    """Returns one row of each kind and profile, as the shipped constants predict it."""
    firsts: dict[tuple[str, str], Raw] = {}
    for one in found:
        firsts.setdefault((one.point.kind, one.point.profile), one.row)
    predictor = Predictor(cases=cases)
    return [
        {
            **{name: text(row, name) for name in CHECKED if text(row, name)},
            "predicted": predictor.predict(row).value,
        }
        for row in firsts.values()
    ]


def _lines(document: Mapping[str, object]) -> str:
    """Returns JSON with a line for each element of a list, so that diffs are readable."""
    parts = []
    for name, value in document.items():
        if isinstance(value, list):
            body = ",\n".join("  " + json.dumps(one) for one in value)
            parts.append(f" {json.dumps(name)}: [\n{body}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
