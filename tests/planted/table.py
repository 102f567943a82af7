"""Keeps the results: one row a fault, in `tests/data/planted.tsv`, and says what they come to."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from tests.planted import ROOT

TABLE = ROOT / "tests" / "data" / "planted.tsv"
EQUIVALENT = ROOT / "tests" / "data" / "planted_equivalent.tsv"
"""Keys of faults that change nothing that can be seen, each with the reason: kept by hand."""

SHORT, LONG, NONE, UNTRIED = "short", "long", "none", "untried"
"""The suite that finds a fault; untried: the short one does not, and the long one was not run yet."""
GOAL = 0.97


@dataclass(frozen=True)
class Row:
    """One fault and what became of it.  test: the first that failed, or a limit in brackets, or "-"."""

    number: int
    key: str
    area: str
    file: str
    line: int
    before: str
    after: str
    found_by: str
    test: str
    seconds: int


def read(path: Path = TABLE) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            Row(
                **{
                    **row,
                    "number": int(row["number"]),
                    "line": int(row["line"]),
                    "seconds": int(row["seconds"]),
                }
            )
            for row in rows
        ]


def write(rows: Iterable[Row], path: Path = TABLE) -> None:
    """In the order of their numbers."""
    lines = ["\t".join(field.name for field in fields(Row))]
    lines += ["\t".join(map(str, astuple(row))) for row in sorted(rows, key=lambda row: row.number)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def equivalent() -> dict[str, str]:
    """Reasons by key."""
    if not EQUIVALENT.exists():
        return {}
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()[1:]
    return dict(line.split("\t", 1) for line in lines)


def share(rows: Iterable[Row]) -> float:
    """The share of the faults found by either suite that the short suite finds."""
    counts = Counter(row.found_by for row in rows)
    found = counts[SHORT] + counts[LONG]
    return counts[SHORT] / found if found else 1.0


def summary(rows: list[Row]) -> str:
    """Counts by area, the share, and what nothing found."""
    same = equivalent()
    counted = [row for row in rows if row.key not in same]
    lines = [f"{'area':<12}{'short':>6}{'long':>6}{'none':>6}{'untried':>9}{'equivalent':>12}"]
    for area in dict.fromkeys(row.area for row in rows):
        lines.append(_line(area, [row for row in rows if row.area == area], same))
    lines.append(_line("all", rows, same))
    untried = sum(row.found_by == UNTRIED for row in counted)
    least = f", if the long one finds none of the {untried} that it was not asked about" if untried else ""
    lines.append(
        f"the short suite finds {share(counted):.1%} of what either finds{least}; the goal is {GOAL:.0%}"
    )
    lines += [f"{row.found_by}: {row.key} {row.file}:{row.line}: {row.before}  ->  {row.after}"
              for row in counted if row.found_by != SHORT]  # fmt: skip
    return "\n".join(lines)


def _line(name: str, rows: list[Row], same: dict[str, str]) -> str:
    counts = Counter(row.found_by for row in rows if row.key not in same)
    equal = sum(row.key in same for row in rows)
    return f"{name:<12}{counts[SHORT]:>6}{counts[LONG]:>6}{counts[NONE]:>6}{counts[UNTRIED]:>9}{equal:>12}"
