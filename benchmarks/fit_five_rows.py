"""What five rows of a model are worth: `corepipe fit` on five rows of a family that was left out.

python benchmarks/fit_five_rows.py ROWS.csv

Constants are those of the family's fold.  An hour measures one stack with one tool: of the pair of these that
most of a family's rows have, five are drawn (half of them where there are fewer than ten), and the median
error of the others is compared; of three draws the middle one.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from residuals import folds  # the script beside this one
from rich.table import Column

from corepipe.cli.common import results
from corepipe.cli.tables import Figures
from corepipe.neuron.constants import shipped
from corepipe.neuron.uncertainty import GUESSED
from corepipe.planning.calibration import rows
from corepipe.planning.calibration.assumed import completed
from corepipe.planning.calibration.cases import Cases
from corepipe.planning.calibration.fit import family
from corepipe.planning.calibration.refine import refine
from corepipe.planning.calibration.residuals import Measured, left_out, measured

ROWS, DRAWS = 5, 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="measurements, as fit_cost_model.py takes them")
    given = parser.parse_args()
    cases, console = Cases(), results()
    families: defaultdict[str, list[Measured]] = defaultdict(list)
    for one in measured(tuple(completed(rows.read(given.rows).rows)), left_out(cases, folds())):
        if not one.point.tail and not one.point.profile.endswith(GUESSED):
            families[family(one.row)].append(one)
    table = Figures(
        "family", *(Column(name, justify="right") for name in ("rows", "before", "after", "ratio"))
    )
    halved = 0
    for name, every in families.items():
        found = _most_measured(every)
        pairs = [_draw(name, found, cases, seed) for seed in range(DRAWS)]
        before, after = (median(values) for values in zip(*pairs, strict=True))
        halved += after <= before / 2
        table.add_row(
            name, str(len(found)), f"{before:.1%}", f"{after:.1%}", f"{after / max(before, 1e-9):.2f}"
        )
        console.print(f"{name}: {before:.1%} before, {after:.1%} after")
    console.print(table)
    console.print(f"halved in {halved} of {len(families)} families")


def _most_measured(found: Sequence[Measured]) -> list[Measured]:
    """The rows of the stack and the tool that have most; under load where there are no others."""
    groups: defaultdict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.point.profile, one.row["task"]].append(one)
    return max(groups.values(), key=lambda group: (not group[0].row["arrival"], len(group)))


def _draw(name: str, found: Sequence[Measured], cases: Cases, seed: int) -> tuple[float, float]:
    """The median error of the rows that are not drawn, before and after."""
    drawn = set(random.Random(seed).sample(range(len(found)), min(ROWS, len(found) // 2)))
    start = folds().get(name, dict(shipped()))
    fitted = refine([found[i].row for i in sorted(drawn)], cases, start).predictor(cases)
    rest = [one for i, one in enumerate(found) if i not in drawn]
    after = measured([one.row for one in rest], lambda _: fitted)
    return median(abs(one.error) for one in rest), median(abs(one.error) for one in after)


if __name__ == "__main__":
    main()
