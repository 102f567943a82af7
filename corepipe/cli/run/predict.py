"""The work of `corepipe predict`: writes the rows of a file with predictions into another file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corepipe.cli.output.common import check_writable, errors, progress_bar, write_result
from corepipe.cli.run.software import software
from corepipe.errors import UserError
from corepipe.neuron.chips.profiles import profile as find_profile
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.predict import Predictor, RowPrediction
from corepipe.planning.calibration.residuals import row_interval
from corepipe.planning.calibration.rows import UNITS, Raw, as_csv, is_rate, read

SHOWN = 5
"""Reasons for rows without a prediction, the most frequent ones, that are printed."""


ADDED = ("predicted", "otherwise", "low", "high", "basis", "reason")
"""Columns that are added to each row.

otherwise: the other figure, where the software's kernel or sampling is not documented.  low, high: what a
measurement is expected to lie between; basis: what that rests on.
"""


def run(given: Mapping[str, Any]) -> None:
    """Predicts the rows.  Raises UserError for files that cannot be read or written, and for one with a
    column that no row has as it must be."""
    rows, output, profile = (given[name] for name in ("rows", "output", "profile"))
    chosen = find_profile(profile) if profile else None
    table = read(rows)
    if "unit" not in table.columns:
        raise UserError(f"{rows}: lacks the column unit; it says what is asked for: {', '.join(UNITS)}")
    check_writable("--output", output)
    predictor = Predictor(cases=Cases(chosen))
    found: list[RowPrediction] = []
    by: Counter[str] = Counter()
    written: list[dict[str, str]] = []
    with progress_bar(errors()) as report:
        for number, (row, asked) in enumerate(zip(table.rows, completed(table.rows), strict=True)):
            report("predicting", number / len(table.rows))
            found.append(predictor.predict(asked))
            if found[-1].value is not None:
                by[software(predictor.ask(asked).case.profile)] += 1
            written.append({**row, **_columns(predictor, asked, found[-1])})
    _refuse_columns(rows, found)
    columns = [name for name in table.columns if name not in ADDED]
    write_result("--output", output, as_csv([*columns, *ADDED], written))
    _tell(output, found, by)


def _refuse_columns(path: Path, found: Sequence[RowPrediction]) -> None:
    """Raises UserError where every single row has a cell that cannot be used: the file is not what it should
    be, and nothing is written."""
    if found and all(one.column for one in found):
        (column, why), _ = Counter((one.column, one.reason) for one in found).most_common(1)[0]
        raise UserError(f"{path}: no row can be predicted, for its column {column}: {why}")


def _tell(output: Path, found: Sequence[RowPrediction], by: Counter[str]) -> None:
    """Prints how many rows are predicted, by software profile (`by`), how many are not because of one of
    their cells, and the reasons."""
    done = sum(one.value is not None for one in found)
    errors().print(f"{done} of {len(found)} rows are predicted; wrote them to {output}")
    for around, count in by.most_common():
        errors().print(f"  {count} with {around}")
    bad = Counter(one.column for one in found if one.column)
    if bad:
        named = ", ".join(f"{column} ({count})" for column, count in bad.most_common())
        errors().print(f"{bad.total()} rows have a cell that cannot be used: {named}")
    why = Counter(one.reason for one in found if one.value is None)
    for reason, count in why.most_common(SHOWN):
        errors().print(f"  {count} not predicted: {reason}")
    if len(why) > SHOWN:
        errors().print(f"  {len(why) - SHOWN} more reasons are in the column `reason`")


def _columns(predictor: Predictor, row: Raw, found: RowPrediction) -> dict[str, str]:
    if found.value is None:
        return {**dict.fromkeys(ADDED, ""), "reason": found.reason}
    known = row_interval(predictor.ask(row), row)
    low, high = known.around(*found.values, rate=is_rate(row))
    return {
        "predicted": f"{found.value:.6g}",
        "otherwise": "" if found.other is None else f"{found.other:.6g}",
        "low": f"{low:.6g}",
        "high": f"{high:.6g}",
        "basis": known.basis,
        "reason": found.reason,
    }
