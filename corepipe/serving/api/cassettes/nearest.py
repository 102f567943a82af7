"""Finds the recorded request most similar to one that is not recorded, and shows where the two differ."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec

from corepipe.serving.api.cassettes.exchange import RecordedRequest
from corepipe.serving.api.cassettes.folding import fold

MOST_REQUESTS = 20_000
"""The most recorded requests that are compared."""
MOST_COMPARED = 64 * 1024
"""The most bytes of each request that are compared."""
MOST_LINES = 200
"""The most lines of two requests, from their first difference on, that are compared."""
MOST_SHOWN = 24
"""The most lines of a difference that are shown."""
WIDEST = 160
"""The most characters of a line that are shown."""

_WORD = re.compile(rb'[^\s"{}\[\]:,.]+')


@dataclass(frozen=True, slots=True)
class NearestRequest:
    """The file of a recorded request, and its lines (-) beside those of the other request (+)."""

    file: str
    difference: str


def nearest(request: RecordedRequest, recorded: Mapping[str, RecordedRequest]) -> NearestRequest | None:
    """Returns the request of the same method and path with the most words in common, or None."""
    words = _words(request)
    alike = ((file, one) for file, one in recorded.items() if (one.method, one.path) == _place(request))
    best, best_share = None, -1.0
    for file, one in islice(alike, MOST_REQUESTS):
        others = _words(one)
        share = len(words & others) / (len(words | others) or 1)
        if share > best_share:
            best, best_share = file, share
    return None if best is None else NearestRequest(best, difference(recorded[best], request))


def difference(old: RecordedRequest, new: RecordedRequest) -> str:
    """Returns the lines of the bodies that differ, with the lines around them."""
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


def _place(request: RecordedRequest) -> tuple[str, str]:
    return request.method, request.path


def _words(request: RecordedRequest) -> frozenset[bytes]:
    return frozenset(_WORD.findall(request.body[:MOST_COMPARED]))


def _lines(request: RecordedRequest) -> list[str]:
    head = ["x-corepipe-device: 1"] if request.device else []
    text = msgspec.json.format(request.canonical, indent=2).decode()
    return [*head, *fold(text).split("\n")]
