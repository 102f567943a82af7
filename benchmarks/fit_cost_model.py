"""Fits the cost model's constants to measurements, and reports their errors on left-out families.

    python benchmarks/fit_cost_model.py ROWS.csv                        # writes neuron/constants.json
    python benchmarks/fit_cost_model.py ROWS.csv --cross-validate-only  # writes nothing
    python benchmarks/fit_cost_model.py ROWS.csv --keep                 # writes the errors of what is there

The errors are those of leave-one-family-out cross-validation: every family of models is predicted with
constants from the rows of the others.  The file stays outside the repository: its hash is written down.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from corepipe.cli.output.common import results
from corepipe.cli.run.validate import show
from corepipe.neuron.chips.constants import (
    FEW_ROWS,
    FILE,
    IDEAL,
    STAND_INS,
    Constants,
    as_json,
    folds,
    provenance,
    shipped,
)
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import Fit, Known, fit, leave_one_out, usable, version
from corepipe.planning.calibration.physics import consistent
from corepipe.planning.calibration.predict import Predictor, RowPrediction
from corepipe.planning.calibration.residuals import left_out
from corepipe.planning.calibration.rows import Raw
from corepipe.planning.calibration.score import Cell, cells, pair

NEAR = 0.3
"""Strength of that (`fit.fit`, pull)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rows", type=Path, help="measurements, with the columns of planning/calibration/rows.py"
    )
    parser.add_argument("--cross-validate-only", action="store_true", help="print the errors, write nothing")
    parser.add_argument(
        "--keep", action="store_true", help="fit nothing: after a change of what no constant is fitted to"
    )
    parser.add_argument("--output", type=Path, default=FILE, help="where to write the constants")
    given = parser.parse_args()
    table, cases, console = rows.read(given.rows), Cases(), results()
    known = tuple(consistent(tuple(completed(table.rows)), cases))
    if given.keep:
        found = errors(known, cases, *stored())
        show(console, found)
        given.output.write_text(json.dumps(with_errors(found), indent=1) + "\n")
        return
    used = usable(known, cases)
    console.print(f"{len(used)} of {len(known)} rows are fitted to")
    chosen, without = fit_and_folds(used, cases)
    found = errors(known, cases, chosen, without)
    console.print("Leave-one-family-out errors (|error| median and p90, bias; the plain roofline's beside):")
    show(console, found)
    for generation, constants in chosen.constants.items():
        console.print(
            f"{generation}: {json.dumps(as_json(constants))} from {chosen.rows.get(generation, 0)} rows"
        )
    if not given.cross_validate_only:
        given.output.write_text(json.dumps(record(given.rows, chosen, without, found), indent=1) + "\n")
        console.print(f"written to {given.output}")


def fit_and_folds(used: Sequence[Raw], cases: Cases) -> tuple[Fit, dict[str, Fit]]:
    """Returns the fit to all rows, and those without each family of models and without each campaign."""
    one = partial(fit_all, known={})
    return one(used, cases), leave_one_out(used, cases, one)


def stored() -> tuple[Fit, dict[str, Fit]]:
    """Returns the stored results of `fit_and_folds`."""
    known = {name: Fit(constants, {}) for name, constants in folds().items()}
    return Fit(shipped(), provenance()["rows_used"]), known


def with_errors(found: Sequence[Cell]) -> dict[str, object]:
    """Returns the file with its errors replaced."""
    known = json.loads(FILE.read_text())
    scores = [cell.as_json() for cell in found]
    return {**known, "provenance": {**known["provenance"], "cells": scores}}


def fit_all(used: Sequence[Raw], cases: Cases, known: Known) -> Fit:
    """Fits every generation's constants; those with few rows are drawn to the constants of v2."""
    many = [row for row in used if version(row) not in FEW_ROWS]
    first = fit(many, cases, known=known)
    own = {generation: found for generation, found in shipped().items() if generation not in STAND_INS}
    fitted = {**own, **first.constants}
    start = {**fitted, **{v: replace(fitted["v2"]) for v in FEW_ROWS}}
    second = fit([row for row in used if version(row) in FEW_ROWS], cases, start, NEAR, known)
    return Fit({**start, **second.constants}, {**first.rows, **second.rows})


def errors(table: Sequence[Raw], cases: Cases, chosen: Fit, without: Mapping[str, Fit]) -> list[Cell]:
    """Returns the cells of the whole file, each row predicted without its family."""
    predictor_of = left_out(cases, {name: fold.constants for name, fold in without.items()}, chosen.constants)
    predicted = [predictor_of(row).predict(row) for row in table]
    return cells(pair(table, predicted, roofline(table, cases)))


def roofline(table: Sequence[Raw], cases: Cases) -> list[RowPrediction]:
    """Returns the predictions of the data sheet alone."""
    plain: dict[str, Constants] = dict.fromkeys(shipped(), IDEAL)
    predictor = Predictor(constants=plain, cases=cases)
    return [predictor.predict(row) for row in table]


def record(path: Path, chosen: Fit, folds: Mapping[str, Fit], found: Sequence[Cell]) -> dict[str, object]:
    """Returns the document that is written: the constants, their source, and their errors."""
    known = {v: as_json(c) for v, c in chosen.constants.items()}
    provenance = {
        "date": datetime.now(UTC).date().isoformat(),
        "rows_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows_used": dict(chosen.rows),
        "method": "robust least squares on log(predicted / measured); benchmarks/fit_cost_model.py",
        "few_rows": f"{', '.join(FEW_ROWS)}: drawn to the constants of v2; not validated",
        "folds": {name: {v: as_json(c) for v, c in fold.constants.items()} for name, fold in folds.items()},
        "cells": [cell.as_json() for cell in found],
    }
    return {**known, "provenance": provenance}


if __name__ == "__main__":
    main()
