"""The table of docs/prediction.md: cross-validation errors of the cost model, as stored beside its constants.

python benchmarks/prediction_table.py            # writes it into the page
python benchmarks/prediction_table.py --check    # exit 1 where the page has another
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corepipe.neuron.constants import provenance

PAGE = Path(__file__).parent.parent / "docs" / "prediction.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"


def table() -> str:
    """Cells that are validated, in Markdown."""
    rows = [cell for cell in provenance()["cells"] if cell["validated"]]
    head = "| metric | instance | profile | rows | error | bias | plain roofline |\n"
    return head + "|---" * 7 + "|\n" + "".join(map(line, rows))


def line(cell: Mapping[str, Any]) -> str:
    error = f"{cell['median']:.1%} / {cell['p90']:.1%}"
    roofline = f"{cell['roofline_median']:.0%} / {cell['roofline_p90']:.0%}"
    names = f"{cell['metric']} | {cell['instance']} | {cell['profile']} | {cell['n']}"
    return f"| {names} | {error} | {cell['bias']:+.1%} | {roofline} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = before + BEGIN + table() + END + after
    if args.check:
        sys.exit(new != text)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
