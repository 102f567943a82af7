"""Chooses faults and plants them: the same source and seed give the same ones.

A line is as likely as any other of its area.  Lines, and what is done to each, are ranked by a digest of the
seed, the path and the line's text: a change elsewhere in a file moves nothing, and a fault keeps its key.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from tests.planted import native_faults, python_faults
from tests.planted.areas import AREAS, NATIVE, Area, shares, text_of
from tests.planted.candidate import Candidate

RESERVE = 3
"""Faults of the kernels for each that is asked for: some do not compile."""


@dataclass(frozen=True)
class Fault:
    """A planted fault.  line: of its first changed character, from 1.  before and after: that line's text."""

    key: str
    area: str
    path: str
    line: int
    lines: range
    operator: str
    before: str
    after: str
    text: str
    whole: str
    """The file with the fault in it, and without."""

    def __str__(self) -> str:
        return f"{self.key} {self.area} {self.path}:{self.line}: {self.before}  ->  {self.after}"


def chosen(seed: int, faults: int) -> list[list[Fault]]:
    """For each fault its alternatives, the first of which is meant; all but kernels have one."""
    counts = shares(faults)
    made: list[list[Fault]] = []
    for area in AREAS:
        count = counts[area.name]
        reserve = RESERVE if area.name == NATIVE else 1
        found = list(islice(of_area(area, seed), count * reserve))
        made.extend(found[number::count] for number in range(min(count, len(found))))
    return made


def of_area(area: Area, seed: int) -> Iterator[Fault]:
    """All faults of an area, one a line, in their order."""
    kind = native_faults if area.name == NATIVE else python_faults
    ranked = []
    for path in area.sources():
        text = text_of(path)
        for rank, line, some in _by_line(seed, path, text, kind.candidates(text)):
            ranked.append((rank, path, line, some))
    for rank, path, _, some in sorted(ranked, key=lambda one: one[:3]):
        if fault := _first(area, path, rank, some, kind.mutated):
            yield fault


def _by_line(
    seed: int, path: str, text: str, candidates: Iterable[Candidate]
) -> Iterator[tuple[str, int, list[Candidate]]]:
    """Each line that can be changed, with its rank, and its changes by theirs."""
    lines = text.splitlines()
    by_line: dict[int, list[Candidate]] = defaultdict(list)
    for one in candidates:
        by_line[one.line].append(one)
    seen: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        seen[line.strip()] += 1
        if number not in by_line:
            continue
        rank = _digest(seed, path, line.strip(), seen[line.strip()])
        places: Counter[str] = Counter()
        keyed = []
        for one in by_line[number]:
            places[one.operator] += 1
            keyed.append((_digest(rank, one.operator, places[one.operator]), one))
        yield rank, number, [one for _, one in sorted(keyed, key=lambda pair: pair[0])]


def _first(
    area: Area, path: str, rank: str, some: list[Candidate], mutated: Callable[[str, Candidate], str]
) -> Fault | None:
    """The first of a line's changes that leaves the line another one."""
    text = text_of(path)
    for one in some:
        after = mutated(text, one)
        if (changed := _changed_line(text, after)) is not None:
            old, new = text.splitlines(), after.splitlines()
            before, now = old[changed].strip(), new[changed].strip()
            key = rank[-8:]
            return Fault(key, area.name, path, changed + 1, one.lines, one.operator, before, now, after, text)
    return None


def _changed_line(old: str, new: str) -> int | None:
    """The first line that differs in more than its blanks; None where none does."""
    pairs = enumerate(zip(old.splitlines(), new.splitlines(), strict=False))
    return next((number for number, (a, b) in pairs if a.split() != b.split()), None)


def _digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()
