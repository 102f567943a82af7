"""The work of `corepipe validate`: compares rows with predictions, cell by cell, as a table or a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from corepipe.cli.output.common import errors, print_json, progress_bar, results
from corepipe.cli.output.tables import Figures
from corepipe.errors import UserError
from corepipe.neuron.chips.constants import IDEAL, provenance, shipped
from corepipe.neuron.chips.profiles import profile as find_profile
from corepipe.neuron.timing.uncertainty import ENOUGH, LEVEL, record, shipped_uncertainty
from corepipe.planning.calibration import scoreboard
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.coverage import Coverage, Covered, coverage
from corepipe.planning.calibration.decisions import Decisions, PairOrder, decisions
from corepipe.planning.calibration.physics import refused
from corepipe.planning.calibration.predict import Predictor, RowPrediction
from corepipe.planning.calibration.residuals import MeasuredRow, measured, residuals
from corepipe.planning.calibration.rows import read_measured
from corepipe.planning.calibration.score import Cell, cells, pair

LEFT_OUT = "left-out runs within their {level:.0%} intervals"

Stored = Mapping[tuple[str, str, str], tuple[float, float]]


def run(given: Mapping[str, Any]) -> None:
    """Scores the rows and prints the cells.  Raises UserError for a file that cannot be read, and for values
    that cannot have been measured."""
    rows, profile = given["rows"], given["profile"]
    if given["scoreboard"]:
        _scoreboard(as_json=given["json"])
        return
    if rows is None:
        raise UserError("give a file of measurements, or --scoreboard", "rows")
    chosen = find_profile(profile) if profile else None
    table, cases = read_measured(rows), Cases(chosen)
    predictor = Predictor(cases=cases)
    plain = Predictor(constants=dict.fromkeys(shipped(), IDEAL), cases=cases)
    predicted: list[RowPrediction] = []
    baseline: list[RowPrediction] = []
    with progress_bar(errors()) as report:
        for number, row in enumerate(completed(table.rows)):
            report("predicting", number / len(table.rows))
            predicted.append(predictor.predict(row))
            baseline.append(plain.predict(row))
    bad = refused(table.rows, cases)
    apart = {one.number for one in bad}
    kept = [number for number in range(len(table.rows)) if number + 1 not in apart]
    known = tuple(completed(table.rows))
    chosen_rows = [known[number] for number in kept]
    found = cells(
        pair(chosen_rows, [predicted[number] for number in kept], [baseline[number] for number in kept])
    )
    if not found:
        raise UserError(f"{rows}: {_nothing(predicted)}", "rows")
    skipped = sum(p.value is None for p in predicted)
    compared = measured(chosen_rows, lambda _: predictor)
    held = _held(compared)
    if given["json"]:
        intervals = {"coverage": [one.as_json() for one in coverage(held)]}
        chosen_by = {"decisions": decisions(compared, held).as_json()}
        document = _document(found, len(table.rows), skipped)
        print_json(
            {**document, "contradictory": [asdict(one) for one in bad], "intervals": intervals | chosen_by}
        )
        return
    console = results()
    show(console, found, _stored())
    show_coverage(console, coverage(held), LEVEL, "runs within their {level:.0%} intervals")
    show_decisions(console, decisions(compared, held))
    if bad:
        console.print(f"{len(bad)} rows contradict themselves or physics and are not counted:")
        for one in bad:
            console.print(f"  {one}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(table.rows) - skipped} of {len(table.rows)} rows are predicted; "
        "errors in percent, median / p90; left out: in cross-validation; few rows and tails: not validated."
    )


def _scoreboard(*, as_json: bool) -> None:
    """Prints the errors of this cost model beside those that others publish."""
    if as_json:
        print_json({"errors": [one._asdict() for one in scoreboard.rows()]})
        return
    console = results()
    table = Figures(
        "predictor", "figure", ">error in %", "found on", "blind", "source", title="median errors"
    )
    for one in scoreboard.rows():
        table.add_row(*one)
    console.print(table)
    console.print(
        "What would lower these errors most: one prompt's kernel profile of each stack (fused or spilled "
        "attention), and the queue of a server of which the software is known."
    )


def _held(compared: Sequence[MeasuredRow]) -> list[Covered]:
    """The runs with the intervals that every prediction has."""
    known = shipped_uncertainty()
    return [Covered(one, known.interval(one.point)) for one in residuals(compared)]


def _nothing(predicted: Sequence[RowPrediction]) -> str:
    """Says why there is nothing to compare."""
    if not predicted:
        return "has no rows under its header"
    reasons = Counter(one.reason for one in predicted if one.value is None)
    if not reasons:
        return "no row has a `value` to compare with"
    reason, count = reasons.most_common(1)[0]
    return f"none of {len(predicted)} rows has a value and a prediction; {count} have none since: {reason}"


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
        "left_out": {name: record()[name] for name in ("coverage", "decisions")},
        "constants_date": known.get("date"),
    }


def show(console: Console, found: Sequence[Cell], stored: Stored | None = None) -> None:
    """Prints the cells under their metrics; `stored`: cross-validation errors to stand beside them.

    It fits a terminal of 100 columns.
    """
    figures = (">n", ">|error|", ">bias", *([">left out"] if stored else []), ">roofline", ">noise")
    table = Figures("metric and profile", "instance", *figures, header_style="bold", pad_edge=False)
    above: tuple[bool, str] = (True, "")
    for cell in found:
        if above[0] and not cell.validated:
            table.add_row(Text("not validated:", "italic"))
        if above != (cell.validated, cell.metric):
            table.add_row(Text(cell.metric, "bold"))
        table.add_row(*_cells(cell, stored))
        above = cell.validated, cell.metric
    console.print(table)


def _cells(cell: Cell, stored: Stored | None) -> list[str]:
    apart = (stored or {}).get((cell.metric, cell.instance, cell.profile), (None, None))
    pairs = [_pair(*apart)] if stored else []
    known = [_pair(cell.median, cell.p90), _percent(cell.bias), *pairs]
    known += [_pair(cell.roofline_median, cell.roofline_p90), _percent(cell.noise)]
    return [f"  {cell.profile}", cell.instance, str(cell.n), *known]


def _pair(median: float | None, p90: float | None) -> str:
    return "-" if median is None else f"{_percent(median)} / {_percent(p90)}"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.0f}" if abs(share) >= 1 else f"{100 * share:.1f}"


def show_coverage(console: Console, found: Sequence[Coverage], level: float, title: str = LEFT_OUT) -> None:
    """Prints how many runs lie in their intervals, by kind of figure."""
    names = ("kind of figure", ">runs", ">campaigns", ">within", ">19 times of 20", ">within a factor of", "")
    table = Figures(*names, title=title.format(level=level))
    for one in found:
        bound, width = f"{one.least:.0%} to {one.most:.0%}", f"{one.width**0.5:.2f}"
        table.add_row(one.kind, str(one.runs), str(one.units), f"{one.share:.1%}", bound, width, _judged(one))
    console.print(table)


def _judged(one: Coverage) -> str:
    if one.units < ENOUGH:
        return "too few campaigns: the largest error seen"
    return "" if one.sound else "off"


def show_decisions(console: Console, found: Decisions) -> None:
    """Prints how often the predicted order of two configurations is the measured one."""
    table = Figures("two", ">intervals apart", ">right", ">overlapping", ">right")
    for name, (apart, overlapping) in {**found.by, "all": (found.apart, found.overlapping)}.items():
        table.add_row(name, *_order(apart), *_order(overlapping))
    console.print(table)
    regret = found.regret
    console.print(
        f"first choice by cost: the best of its group in {regret.best} of {regret.groups}; dearer than it by "
        f"{regret.median:.1%} in the median, {regret.mean:.1%} on average, {regret.p90:.1%} at p90, "
        f"{regret.worst:.1%} at worst"
    )


def _order(order: PairOrder) -> tuple[str, str]:
    return str(order.pairs), "-" if order.share is None else f"{order.share:.1%}"
