"""The tables of docs/prediction.md: intervals by kind of figure, as stored beside the residuals; errors of
the cost model cell by cell, as stored beside its constants.

python benchmarks/prediction_table.py            # writes it into the page
python benchmarks/prediction_table.py --check    # exit 1 where the page has another
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corepipe.neuron.chips.constants import provenance
from corepipe.neuron.timing.uncertainty import ENOUGH, record
from corepipe.planning.calibration.coverage import ALL, TAILS

PAGE = Path(__file__).parent.parent / "docs" / "prediction.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
TARGETS, END_TARGETS = "<!-- targets -->\n", "<!-- end of targets -->\n"
KINDS, END_KINDS = "<!-- kinds -->\n", "<!-- end of kinds -->\n"


WANTED = {
    "first token": (12, 35), "decode": (5, 15), "first token, tails": (8, 20), "decode, tails": (8, 20),
    "throughput": (6, 20), "decode, under load": (15, 35), "first token, under load": (20, 60),
    "encoder": (6, 15), "convolutional network": (10, 30),
}  # fmt: skip
"""Targets: median and 90th percentile of errors in percent, at most."""


def kinds() -> str:
    """Returns the kinds of figures: errors of left-out rows, and how their intervals held, in Markdown."""
    head = "| figure | runs | families in campaigns | error, median / p90 | within | interval, mean width |\n"
    scores = {one["kind"]: one for one in record()["scores"]}
    found = sorted(record()["coverage"], key=lambda kind: (kind["kind"] == ALL, TAILS in kind["kind"]))
    return head + "|---" * 6 + "|\n" + "".join(_kind(one, scores.get(one["kind"])) for one in found)


def _kind(one: Mapping[str, Any], score: Mapping[str, Any] | None) -> str:
    error = f"{score['median']:.0%} / {score['p90']:.0%}" if score else ""
    claim = "" if one["units"] >= ENOUGH else " (the largest error seen)"
    return (
        f"| {one['kind']} | {one['runs']} | {one['units']} | {error} | {one['share']:.0%} | "
        f"x/÷ {one['width'] ** 0.5:.2f}{claim} |\n"
    )


def targets() -> str:
    """Returns the errors beside their targets, in Markdown."""
    lines = ["| figure | rows | median / p90 | wanted | |", "|---|---|---|---|---|"]
    for one in record()["scores"]:
        if wanted := WANTED.get(one["kind"]):
            error = (100 * one["median"], 100 * one["p90"])
            missed = [
                name for name, had, most in zip(("median", "p90"), error, wanted, strict=True) if had > most
            ]
            told = f"{' and '.join(missed)} missed" if missed else "met"
            figures = " | ".join(" / ".join(f"{part:.3g}" for part in pair) for pair in (error, wanted))
            lines.append(f"| {one['kind']} | {one['rows']} | {figures} | {told} |")
    return "\n".join(lines) + "\n"


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
    new = _replaced(new, TARGETS, targets(), END_TARGETS)
    if args.check:
        sys.exit(new != text)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
