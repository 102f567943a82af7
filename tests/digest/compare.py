"""Finds the first difference between the frozen digest and the code's present results, and knows intended
ones.

A difference is named by a path into an unpacked entry, an exception by a path in which `*` is any step,
`5|11` one of two, and `* experts` any Op of that kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.digest import forms
from tests.digest.forms import Json, canonical
from tests.digest.parts import DATA, KINDS, Part

EXCEPTIONS = DATA / "exceptions.json"
ABSENT = "(absent)"
"""Marks, in a difference and in an exception, a field or an item that does not exist."""
LONGEST = 200
"""Characters of a value in a line of text."""

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two values differ, and the values there."""

    path: Path_
    old: Json
    new: Json

    def __str__(self) -> str:
        return f"{'/'.join(self.path)}: {_shown(self.old)} was frozen, {_shown(self.new)} is now"


def _shown(value: Json) -> str:
    if value == ABSENT:
        return "nothing"
    text = canonical(value)
    if isinstance(value, str) and value.startswith(("0x", "-0x")):
        text = f"{value} ({float.fromhex(value)!r})"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def first_difference(old: Json, new: Json) -> Difference | None:
    """Returns the first difference, depth first, in the order of the frozen value; None where the two are one
    text."""
    if canonical(old) == canonical(new):
        return None
    return next(_differences(old, new, ()))


def _differences(old: Json, new: Json, path: Path_) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        for key in sorted(keys, key=lambda key: key != "op"):  # the kind of an Op comes before its fields
            yield from _at(old.get(key, ABSENT), new.get(key, ABSENT), (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        for i in range(max(len(old), len(new))):
            pair = [x[i] if i < len(x) else ABSENT for x in (old, new)]
            yield from _at(*pair, (*path, _title(i, pair[0])))
    else:
        yield Difference(path, old, new)


def _title(number: int, item: Json) -> str:
    """Returns the title of an item of a list, with the kind of an Op."""
    return f"{number} {item['op']}" if isinstance(item, dict) and "op" in item else str(number)


def _at(old: Json, new: Json, path: Path_) -> Iterator[Difference]:
    if canonical(old) != canonical(new):
        yield from _differences(old, new, path)


class ExceptionFault(Exception):
    """An exception that breaks the rules of the file."""


@dataclass(frozen=True, slots=True)
class Intended:
    """One row of exceptions.json: its part and entry (`*`: all), the path in it, old, new, and the proof.

    evidence: a source outside this project that proves `new`, and where it is found.
    """

    part: str
    entry: str
    at: Path_
    old: Json
    new: Json
    evidence: str

    def covers(self, part: str, entry: str) -> bool:
        return self.part == part and self.entry in ("*", entry)

    def __str__(self) -> str:
        return f"exception {self.part} {self.entry} {'/'.join(self.at)}"


def exceptions(path: Path = EXCEPTIONS) -> tuple[Intended, ...]:
    """Returns the rows of the file.  Raises ExceptionFault for one with a field missing or without
    evidence."""
    return tuple(map(_intended, json.loads(path.read_text(encoding="utf-8"))))


def _intended(row: Mapping[str, Any]) -> Intended:
    wanted = ("part", "entry", "at", "old", "new", "evidence")
    if sorted(row) != sorted(wanted):
        raise ExceptionFault(f"an exception has the fields {', '.join(wanted)}, not {', '.join(row)}")
    found = Intended(
        row["part"], row["entry"], tuple(row["at"].split("/")), row["old"], row["new"], row["evidence"]
    )
    if found.part not in KINDS:
        raise ExceptionFault(f"the digest has the parts {', '.join(KINDS)}, not {found.part}")
    if not str(found.evidence).strip():
        raise ExceptionFault(f"{found} has no evidence from outside")
    if canonical(found.old) == canonical(found.new):
        raise ExceptionFault(f"{found}: old and new are the same")
    return found


def apply(intended: Intended, frozen: Json) -> int:
    """Puts `new` wherever the path leads to `old`, and returns at how many places."""
    count = 0
    for count, (parent, key) in enumerate(_places(intended, frozen), 1):  # noqa: B007 -- how many there were
        _put(parent, key, intended.new)
    return count


def _places(intended: Intended, frozen: Json) -> Iterator[tuple[Json, Any]]:
    """Yields the places at which the path leads to `old`."""
    *way, last = intended.at
    old = canonical(intended.old)
    for parent in _parents(frozen, way):
        yield from ((parent, key) for key in _keys(parent, last) if canonical(_get(parent, key)) == old)


def _parents(value: Json, way: Sequence[str]) -> Iterator[Json]:
    if not way:
        yield value
        return
    for key in _keys(value, way[0]):
        if (child := _get(value, key)) != ABSENT:
            yield from _parents(child, way[1:])


def _keys(value: Json, step: str) -> list[Any]:
    """Returns the keys or places of `value` that a step of a path matches."""
    if isinstance(value, dict):
        return list(value) if step == "*" else step.split("|")
    if isinstance(value, list):
        number, _, kind = step.partition(" ")  # of an Op; a difference also names its kind
        if number == "*":
            return [i for i, item in enumerate(value) if not kind or item.get("op") == kind]
        return [int(number)] if number.isdecimal() else []
    return []


def _get(parent: Json, key: Any) -> Json:
    if isinstance(parent, dict):
        return parent.get(key, ABSENT)
    return parent[key] if key < len(parent) else ABSENT


def _put(parent: Json, key: Any, new: Json) -> None:
    if new == ABSENT:
        del parent[key]
    elif isinstance(parent, list) and key == len(parent):
        parent.append(new)
    else:
        parent[key] = new


Read = Callable[[str, Json], Json]
"""Computes an entry again: from its name, and from the request when it was frozen."""


def _unlike(_name: str, _other: str) -> bool:
    return False


class Comparison:
    """Compares entries of a part with the code's present results.

    alike: whether two models have the same config under two names, so that one of them need not be read.
    """

    def __init__(
        self,
        part: Part,
        read: Read,
        intended: Sequence[Intended],
        alike: Callable[[str, str], bool] = _unlike,
    ) -> None:
        self._part = part
        self._read = read
        self._alike = alike
        self._intended = [i for i in intended if i.part == part.kind]
        self._unpacked = forms.unpacked if part.kind == "programs" else _as_is

    def difference(self, name: str) -> str | None:
        """Returns a line that names the entry's first difference that no exception covers; None if there is
        none."""
        frozen = self._part.entry(name)
        if twin := frozen.get("as"):
            if self._alike(name, twin):
                return None
            frozen = self._part.entry(twin)
        fresh = self._read(name, frozen)
        covering = [i for i in self._intended if i.covers(self._part.kind, name)]
        if not covering and canonical(fresh) == canonical(frozen):
            return None
        expected = self._unpacked(frozen)
        for intended in covering:
            if not apply(intended, expected) and intended.entry != "*":
                return f"{intended}: the frozen entry has no {_shown(intended.old)} there"
        found = first_difference(expected, self._unpacked(json.loads(canonical(fresh))))
        return None if found is None else f"{self._part.kind}: {name}: {found}"

    def unused(self) -> list[str]:
        """Returns the exceptions that cover no place of any entry of the part.

        `difference` reports this for an exception that names its entry; here only the existence of that entry
        is checked.
        """
        named = [one for one in self._intended if one.entry not in ("*", *self._part.entries)]
        left = [one for one in self._intended if one.entry == "*"]
        for name in self._part.entries if left else ():
            entry = self._unpacked(self._part.entry(name))
            left = [one for one in left if not any(_places(one, entry))]
        return [f"{one} covers nothing" for one in named + left]


def _as_is(entry: Json) -> Json:
    return entry
