"""Writes the errors that intervals are made of, and reports how often those intervals contain a measurement.

    python benchmarks/residuals.py ROWS.csv           # writes neuron/residuals.json: run it after any change
    python benchmarks/residuals.py ROWS.csv --print   # writes nothing

Each family of models is predicted with the constants of its fold, which fit_cost_model.py stored beside the
constants; nothing is fitted.  The file of measurements stays outside the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from rich.console import Console

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.cli.run.validate import show_coverage, show_decisions
from corepipe.neuron.chips.constants import folds
from corepipe.neuron.timing import uncertainty
from corepipe.neuron.timing.uncertainty import COLUMNS, FILE, LEVEL, Residual, Widths, as_rows, scored
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.coverage import by_steps, coverage, nested
from corepipe.planning.calibration.decisions import decisions
from corepipe.planning.calibration.predict import Predictor
from corepipe.planning.calibration.residuals import MeasuredRow, left_out, measured, residuals
from corepipe.planning.calibration.rows import Raw, text

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
    known = tuple(completed(rows.read(given.rows).rows))
    found = measured(known, left_out(cases, folds()))
    errors = residuals(found)
    chosen = recorded(errors)
    errors = scored(errors, chosen.widths)
    report(results(), found, errors, chosen)
    if not given.print:
        FILE.write_text(_lines(record(given.rows, found, errors, chosen, cases)))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The parameters of intervals: those chosen on all families, and by family those chosen on all others."""

    widths: Widths
    folds: dict[str, Widths]


def recorded(errors: Sequence[Residual]) -> Chosen:
    """Returns the parameters in the file; a family that is not in it has those of all families."""
    widths, folds = Widths(**uncertainty.record()["widths"]), uncertainty.fold_widths()
    return Chosen(widths, {one.family: folds.get(one.family, widths) for one in errors})


def show_steps(console: Console, found: Mapping[int, tuple[int, float, float, float]]) -> None:
    """Prints whether intervals are wider, and errors larger, for runs farther from what was measured."""
    table = Figures("steps away", ">runs", ">within", ">width", ">mean |log error|")
    for steps, (runs, share, width, error) in found.items():
        table.add_row(str(steps), str(runs), f"{share:.1%}", f"x {width:.2f}", f"{error:.2f}")
    console.print(table)


def report(
    console: Console, found: Sequence[MeasuredRow], errors: Sequence[Residual], chosen: Chosen
) -> None:
    """Prints coverage, widths and decisions, by the intervals of other families alone."""
    held = nested(errors, chosen.folds)
    console.print(f"chosen: {chosen.widths}; without a family: {Counter(chosen.folds.values())}")
    show_coverage(console, coverage(held), LEVEL)
    show_steps(console, by_steps(held))
    show_decisions(console, decisions(found, held))


def record(
    path: Path, found: Sequence[MeasuredRow], errors: Sequence[Residual], chosen: Chosen, cases: Cases
) -> dict[str, object]:
    """Returns the document that is written: the errors, their coverage, and figures that show later
    whether the cost model still gives the same."""
    held = nested(errors, chosen.folds)
    return {
        "rows_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "level": LEVEL,
        "widths": asdict(chosen.widths),
        "fold_widths": {family: astuple(widths) for family, widths in chosen.folds.items()},
        "coverage": [one.as_json() for one in coverage(held)],
        "decisions": decisions(found, held).as_json(),
        "checks": checks(found, cases),
        "columns": COLUMNS,
        "residuals": as_rows(errors),
    }


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
