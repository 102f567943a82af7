"""The tables of docs/prediction.md: intervals by kind of figure, as stored beside the residuals; errors of
the cost model cell by cell, as stored beside its constants.

python benchmarks/prediction_table.py            # writes it into the page
python benchmarks/prediction_table.py --check    # exit 1 where the page has another
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping
from math import exp
from pathlib import Path
from statistics import median
from typing import Any

from corepipe.neuron.chips.constants import provenance
from corepipe.neuron.timing.uncertainty import record, shipped_uncertainty
from corepipe.planning.calibration.coverage import ALL, TAILS

PAGE = Path(__file__).parent.parent / "docs" / "prediction.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
KINDS, END_KINDS = "<!-- kinds -->\n", "<!-- end of kinds -->\n"


def kinds() -> str:
    """Returns the kinds of figures: errors of left-out runs, and their intervals, in Markdown."""
    head = "| figure | runs | median error | within the 90 % interval | mean width of it |\n"
    errors = defaultdict(list)
    for one in shipped_uncertainty().residuals:
        errors[one.point.kind + TAILS * one.point.tail].append(abs(exp(-one.error) - 1))
        errors[ALL].append(abs(exp(-one.error) - 1))
    found = sorted(record()["coverage"], key=lambda kind: (kind["kind"] == ALL, TAILS in kind["kind"]))
    return (
        head
        + "|---" * 5
        + "|\n"
        + "".join(
            f"| {kind['kind']} | {kind['runs']} | {median(errors[kind['kind']]):.0%} | {kind['share']:.0%} | "
            f"x/÷ {kind['width'] ** 0.5:.2f} |\n"
            for kind in found
        )
    )


def table() -> str:
    """Returns the validated cells, in Markdown."""
    rows = [cell for cell in provenance()["cells"] if cell["validated"]]
    head = "| metric | instance | profile | rows | error | bias | plain roofline |\n"
    return head + "|---" * 7 + "|\n" + "".join(map(line, rows))


def line(cell: Mapping[str, Any]) -> str:
    error = f"{cell['median']:.1%} / {cell['p90']:.1%}"
    roofline = f"{cell['roofline_median']:.0%} / {cell['roofline_p90']:.0%}"
    names = f"{cell['metric']} | {cell['instance']} | {cell['profile']} | {cell['n']}"
    return f"| {names} | {error} | {cell['bias']:+.1%} | {roofline} |\n"


def _replaced(text: str, begin: str, table: str, end: str) -> str:
    before, rest = text.split(begin)
    return before + begin + table + end + rest.split(end)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    new = _replaced(_replaced(text, BEGIN, table(), END), KINDS, kinds(), END_KINDS)
    if args.check:
        sys.exit(new != text)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
