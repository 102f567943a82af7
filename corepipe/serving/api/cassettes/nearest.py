"""Which recorded request is most like one that is not recorded, and where the two differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec

from corepipe.serving.api.cassettes.exchange import Asked
from corepipe.serving.api.cassettes.folding import fold

MOST_REQUESTS = 20_000
"""Recorded requests that are compared."""
MOST_COMPARED = 64 * 1024
"""Bytes of each that are compared."""
MOST_LINES = 200
"""Of two requests, from their first difference on, that are compared line by line."""
MOST_SHOWN = 24
"""Lines of a difference that are told."""
WIDEST = 160
"""Characters of a line that are told."""

_WORD = re.compile(rb'[^\s"{}\[\]:,.]+')


@dataclass(frozen=True, slots=True)
class Nearest:
    """A recorded request's file, and its lines (-) beside those of the other (+)."""

    file: str
    difference: str


def nearest(asked: Asked, recorded: Mapping[str, Asked]) -> Nearest | None:
    """Of the same method and path, by the words that both have; None: there is none."""
    words = _words(asked)
    alike = ((file, one) for file, one in recorded.items() if (one.method, one.path) == _place(asked))
    best, best_share = None, -1.0
    for file, one in islice(alike, MOST_REQUESTS):
        others = _words(one)
        share = len(words & others) / (len(words | others) or 1)
        if share > best_share:
            best, best_share = file, share
    return None if best is None else Nearest(best, difference(recorded[best], asked))


def difference(old: Asked, new: Asked) -> str:
    """Their bodies' lines that differ, with those around them."""
    before, after = _lines(old), _lines(new)
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    window = slice(max(0, same - 1), same + MOST_LINES)
    rows = list(islice(_rows(before[window], after[window]), MOST_SHOWN + 1))
    if len(rows) > MOST_SHOWN:
        rows[-1] = "…"
    return "\n".join(row if len(row) <= WIDEST else row[:WIDEST] + "…" for row in rows)


def _rows(before: list[str], after: list[str]) -> Iterator[str]:
    lines = difflib.unified_diff(before, after, n=1, lineterm="")
    return ("…" if line.startswith("@@") else line for line in islice(lines, 3, None))


def _place(asked: Asked) -> tuple[str, str]:
    return asked.method, asked.path


def _words(asked: Asked) -> frozenset[bytes]:
    return frozenset(_WORD.findall(asked.body[:MOST_COMPARED]))


def _lines(asked: Asked) -> list[str]:
    head = ["x-corepipe-device: 1"] if asked.device else []
    text = msgspec.json.format(asked.canonical, indent=2).decode()
    return [*head, *fold(text).split("\n")]
