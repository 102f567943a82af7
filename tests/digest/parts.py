"""The digest's files: one part each for Programs, times and tokens, written once and pinned by their sha256.

A part is lines of text, compressed by xz: its description, then its entries by name: name, tab, canonical
JSON.  An entry {"as": another} is of a model that is published under two names.  Times may get a newer part,
which then replaces the older: times-3 after times-2.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.digest.forms import Json, canonical

DATA = Path(__file__).parents[1] / "data" / "digest"
SUMS = "SHA256SUMS"
KINDS = ("programs", "times", "tokens")
MOST_BYTES = 5_000_000
"""Largest size of all parts together."""


@dataclass(frozen=True)
class Part:
    """One file: its kind, number and reason, and the canonical JSON of each entry, by name.

    names: the rows of names.tsv when it was written: [kind, ours, neutral].
    """

    kind: str
    number: int
    reason: str
    entries: Mapping[str, str]
    names: Sequence[Sequence[str]] = ()

    def entry(self, name: str) -> Json:
        return json.loads(self.entries[name])


class PartExists(Exception):
    """The error for a part that exists: a part is never written again."""


def path_of(kind: str, number: int, directory: Path = DATA) -> Path:
    return directory / f"{kind}-{number}.jsonl.xz"


def numbers(kind: str, directory: Path = DATA) -> list[int]:
    """Returns the numbers of the existing parts of a kind, ascending."""
    files = directory.glob(f"{kind}-*.jsonl.xz")
    return sorted(int(file.name.removeprefix(f"{kind}-").partition(".")[0]) for file in files)


def latest(kind: str, directory: Path = DATA) -> Part:
    """Returns the latest part.  Raises FileNotFoundError where there is none."""
    there = numbers(kind, directory)
    if not there:
        raise FileNotFoundError(f"{directory} has no part for {kind}")
    with lzma.open(path_of(kind, there[-1], directory), "rt", encoding="ascii") as lines:
        head = json.loads(next(lines))
        entries = dict(line.rstrip("\n").split("\t", 1) for line in lines)
    return Part(head["part"], head["number"], head["reason"], entries, head["names"])


def next_number(kind: str, reason: str, directory: Path = DATA) -> int:
    """Returns the number of a new part.

    Raises PartExists where the kind has its part: only times get another, for a reason that is given.
    """
    there = numbers(kind, directory)
    if there and not (kind == "times" and reason):
        raise PartExists(
            f"{path_of(kind, there[-1], directory).name} is there and is never regenerated: an intended "
            "difference stands in exceptions.json; times alone may get a new part, with --recalibrated REASON"
        )
    return there[-1] + 1 if there else 1


def write(part: Part, directory: Path = DATA) -> Path:
    """Writes a part that does not exist yet, and its line of SHA256SUMS; the same entries give the same
    bytes."""
    if part.number != next_number(part.kind, part.reason, directory):
        raise PartExists(f"{part.kind} {part.number} is not the next part")
    about = {"part": part.kind, "number": part.number, "reason": part.reason, "names": part.names}
    head = canonical(about)
    lines = [head, *(f"{name}\t{part.entries[name]}" for name in sorted(part.entries))]
    data = lzma.compress(
        "".join(f"{line}\n" for line in lines).encode("ascii"), preset=9 | lzma.PRESET_EXTREME
    )
    path = path_of(part.kind, part.number, directory)
    path.write_bytes(data)
    with (directory / SUMS).open("a", encoding="ascii") as sums:
        sums.write(f"{hashlib.sha256(data).hexdigest()}  {path.name}\n")
    return path


def sums(directory: Path = DATA) -> dict[str, str]:
    """Returns file name -> sha256, as SHA256SUMS states them."""
    lines = (directory / SUMS).read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
