"""The digest's names of the code's Ops, their fields, axes and other names: names.tsv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NAMES = Path(__file__).parents[1] / "data" / "digest" / "names.tsv"


@dataclass(frozen=True, slots=True)
class Name:
    """One row: a kind of name, the code's name, the digest's, and the reason if the code's name has changed
    (empty: it has not)."""

    kind: str
    ours: str
    neutral: str
    reason: str


def rows(path: Path = NAMES) -> tuple[Name, ...]:
    """Returns all rows of the mapping file, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(Name(**row) for row in csv.DictReader(file, delimiter="\t"))


@cache
def _known() -> dict[tuple[str, str], str]:
    return {(row.kind, row.ours): row.neutral for row in rows()}


@cache
def neutral(kind: str, ours: str) -> str:
    """Returns the digest's name.  Raises KeyError, naming the file, for a name that has no row."""
    if (kind, ours) not in _known():
        raise KeyError(
            f"{NAMES.name} has no row for {kind} {ours}: add one, or mend the one it was renamed from"
        )
    return _known()[kind, ours]
