"""What five rows of a model are worth: `corepipe fit` on five rows of a family that was left out.

    python benchmarks/fit_five_rows.py ROWS.csv [--draws 9]

Constants are those of the family's fold.  An hour measures one stack with one tool: of the pair of these that
most of a family's rows have, five are drawn (half of them where there are fewer than ten), and the median
error of the others is compared; of the draws the middle one.  Other runs: of the others, those of which no
figure at all was drawn, since a run's throughput follows from its times.  Within: how many of the others lie
in the intervals that the fit leaves.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import median

from rich.table import Column

from corepipe.cli.output.common import results
from corepipe.cli.output.tables import Figures
from corepipe.neuron.chips.constants import folds, shipped
from corepipe.neuron.timing.uncertainty import GUESSED, LEVEL, Interval, shipped_uncertainty
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import family
from corepipe.planning.calibration.refine import narrowed, refine
from corepipe.planning.calibration.residuals import Measured, left_out, measured, run

ROWS = 5


@dataclass(frozen=True, slots=True)
class Draw:
    """Median errors of the rows that were not drawn, before and after; of those of other runs, where there
    are some; and how many lie in their intervals after the fit."""

    before: float
    after: float
    apart: tuple[float, float] | None
    within: int
    rest: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="measurements, as fit_cost_model.py takes them")
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    cases, console = Cases(), results()
    families: defaultdict[str, list[Measured]] = defaultdict(list)
    for one in measured(tuple(completed(rows.read(given.rows).rows)), left_out(cases, folds())):
        if not one.point.tail and not one.point.profile.endswith(GUESSED):
            families[family(one.row)].append(one)
    names = ("rows", "before", "after", "ratio", "other runs", "within")
    table = Figures("family", *(Column(name, justify="right") for name in names))
    found = {}
    for name, every in families.items():
        own = _most_measured(every)
        found[name] = [_draw(name, own, cases, seed) for seed in range(given.draws)]
        cells = _cells(found[name])
        table.add_row(name, str(len(own)), *cells)
        console.print(name, *cells)
    console.print(table)
    ratios = [_middle(draws)[1] / max(1e-9, _middle(draws)[0]) for draws in found.values()]
    drawn = [one for draws in found.values() for one in draws]
    console.print(
        f"halved in {sum(ratio <= 0.5 for ratio in ratios)} of {len(ratios)} families, worse by a twentieth "
        f"in {sum(ratio > 1.05 for ratio in ratios)}; {sum(one.within for one in drawn)} of "
        f"{sum(one.rest for one in drawn)} other rows lie within their intervals"
    )


def _middle(draws: Sequence[Draw]) -> tuple[float, float]:
    return median(one.before for one in draws), median(one.after for one in draws)


def _cells(draws: Sequence[Draw]) -> tuple[str, ...]:
    before, after = _middle(draws)
    apart = [one.apart for one in draws if one.apart]
    old, new = (median(values) for values in zip(*apart, strict=True)) if apart else (0.0, 0.0)
    others = f"{old:.1%} {new:.1%}" if apart else "-"
    within = sum(one.within for one in draws) / sum(one.rest for one in draws)
    return f"{before:.1%}", f"{after:.1%}", f"{after / max(before, 1e-9):.2f}", others, f"{within:.0%}"


def _most_measured(found: Sequence[Measured]) -> list[Measured]:
    """The rows of the stack and the tool that have most; under load where there are no others."""
    groups: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.point.profile, one.row["task"]].append(one)
    return max(groups.values(), key=lambda group: (not group[0].row["arrival"], len(group)))


def _draw(name: str, found: Sequence[Measured], cases: Cases, seed: int) -> Draw:
    drawn = set(random.Random(seed).sample(range(len(found)), min(ROWS, len(found) // 2)))
    start = folds().get(name, dict(shipped()))
    five = [found[i].row for i in sorted(drawn)]
    fitted = refine(five, cases, start)
    shares = dict(narrowed(five, fitted, cases))
    known = {run(row) for row in five}
    rest = [one for i, one in enumerate(found) if i not in drawn]
    after = measured([one.row for one in rest], lambda _: fitted.predictor(cases))
    away = [i for i, one in enumerate(rest) if run(one.row) not in known]
    return Draw(
        median(abs(one.error) for one in rest),
        median(abs(one.error) for one in after),
        (median(abs(rest[i].error) for i in away), median(abs(after[i].error) for i in away))
        if away
        else None,
        sum(abs(one.error) <= log(_interval(one, shares).high) for one in after),
        len(rest),
    )


def _interval(one: Measured, shares: Mapping[str, float]) -> Interval:
    return shipped_uncertainty().interval(one.point, LEVEL, shares.get(one.point.kind, 1.0))


if __name__ == "__main__":
    main()
