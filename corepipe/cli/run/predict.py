"""What `corepipe predict` does: a file's rows with predictions, into another file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from corepipe.cli.common import check_writable, errors, progress_bar, write_result
from corepipe.neuron.profiles import profile as find_profile
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.predict import Prediction, Predictor
from corepipe.planning.calibration.residuals import bounds
from corepipe.planning.calibration.rows import Raw, as_csv, read

SHOWN = 5
"""Reasons for rows without a prediction, the most frequent ones, that are printed."""


ADDED = ("predicted", "low", "high", "reason")
"""What is said of each row; low, high: between which nine of ten measurements would lie."""


def run(rows: Path, output: Path, profile: str | None) -> None:
    """Predicts the rows.  Raises UserError for files that cannot be read or written."""
    chosen = find_profile(profile) if profile else None
    table = read(rows)
    check_writable("--output", output)
    predictor = Predictor(cases=Cases(chosen))
    written: list[dict[str, str]] = []
    with progress_bar(errors()) as report:
        for number, (row, asked) in enumerate(zip(table.rows, completed(table.rows), strict=True)):
            report("predicting", number / len(table.rows))
            found = predictor.predict(asked)
            written.append({**row, **_columns(predictor, asked, found)})
    columns = [name for name in table.columns if name not in ADDED]
    write_result("--output", output, as_csv([*columns, *ADDED], written))
    done = sum(bool(row["predicted"]) for row in written)
    errors().print(f"{done} of {len(written)} rows are predicted; written to {output}")
    why = Counter(row["reason"] for row in written if not row["predicted"])
    for reason, count in why.most_common(SHOWN):
        errors().print(f"  {count} not: {reason}", markup=False, highlight=False)
    if len(why) > SHOWN:
        errors().print(f"  and {len(why) - SHOWN} more reasons: see the column `reason`")


def _columns(predictor: Predictor, row: Raw, found: Prediction) -> dict[str, str]:
    if found.value is None:
        return {**dict.fromkeys(ADDED, ""), "reason": found.reason}
    figures = (found.value, *bounds(predictor.ask(row), row, found.value))
    return {**dict(zip(ADDED, (f"{value:.6g}" for value in figures), strict=False)), "reason": found.reason}
