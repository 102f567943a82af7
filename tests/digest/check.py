"""Selection of the entries to compare: some in every run of the tests, all of them by `make digest`."""

from __future__ import annotations

import re
from functools import cache
from zlib import crc32

import pytest
from numpy._core import _multiarray_umath as numpy_core

from tests.digest import programs, times
from tests.digest.compare import Comparison, Read, exceptions
from tests.digest.forms import Json, canonical, reduced
from tests.digest.models import alike, family
from tests.digest.parts import Part, latest, numbers

SLICES = 32
"""Parts of equal size in which the full form is compared, side by side."""

MOST_LAYERS = 24
"""Most layers of a model with exceptions that every run of the tests compares."""

LAYERS = re.compile(r'"layers":(\d+)')


@cache
def part(kind: str) -> Part:
    """Returns the latest part; one without entries before it is written."""
    return latest(kind) if numbers(kind) else Part(kind, 0, "", {})


@cache
def comparison(kind: str) -> Comparison:
    return Comparison(part(kind), _reader(kind), exceptions(), alike)


def _reader(kind: str) -> Read:
    return read_programs if kind == "programs" else read_times


def read_programs(model: str, frozen: Json) -> Json:
    return programs.read(model, frozen["replicas"])


def read_times(model: str, frozen: Json) -> Json:
    return times.read(model, frozen)


def one_a_family(kind: str) -> list[str]:
    """Returns the model of each family that is read soonest, and the tiny ones.

    That is the one with the fewest layers or, where entries do not state them, the shortest entry.
    """
    entries = {name: text for name, text in part(kind).entries.items() if not text.startswith('{"as"')}
    first: dict[str, str] = {}
    for name in sorted(entries, key=lambda name: (_layers(entries[name]), len(entries[name]), name)):
        first.setdefault(name if name.startswith("tests/") else family(name), name)
    return sorted(first.values())


def of_each_family(kind: str) -> list[object]:
    """Returns the parameters of the tests in every run: `one_a_family`, with the long ones by `make digest`
    only.

    A model with exceptions is written out layer by layer, on every core; some with few layers remain.
    """
    covered = {one.entry for one in exceptions() if one.part == kind}
    return [
        pytest.param(name, marks=[pytest.mark.digest] * (name in covered and _layers(entry) > MOST_LAYERS))
        for name in one_a_family(kind)
        for entry in [part(kind).entries[name]]
    ]


def _layers(entry: str) -> int:
    found = LAYERS.search(entry)
    return int(found[1]) if found else 0


def differences(kind: str, names: list[str]) -> list[str]:
    """Returns a line for each of these entries that differs."""
    return [line for name in names if (line := comparison(kind).difference(name)) is not None]


def other_machine() -> dict[str, str]:
    """Returns an environment in which numpy and its BLAS use the oldest instructions, and sets have another
    order."""
    used = [name for name in numpy_core.__cpu_dispatch__ if numpy_core.__cpu_features__[name]]
    disabled = " ".join(used)
    return {"NPY_DISABLE_CPU_FEATURES": disabled, "OPENBLAS_CORETYPE": "Nehalem", "PYTHONHASHSEED": "1"}


def check_slice(kind: str, number: int) -> None:
    """Compares one of SLICES parts of all entries."""
    names = sorted(part(kind).entries)[number::SLICES]
    if found := differences(kind, names):
        pytest.fail("\n".join(found), pytrace=False)


PLACED = ("bf16 pipeline 2 tensor 2", "int8 pipeline 1 tensor 8")
"""Replicas of each family that every run of the tests compares: stages with ranks, ranks with unequal parts
or none, and two formats."""


def some(kind: str, name: str) -> Json:
    """Returns an entry reduced to the part that every run compares: these replicas and one other, or two
    deployments of five.

    The other ones differ from model to model.
    """
    entry, number = part(kind).entry(name), crc32(name.encode())
    if kind == "programs":
        others = [replica for replica in entry["replicas"] if replica not in PLACED]
        return reduced(entry, [*PLACED, others[number % len(others)]])
    cases = list(entry)
    return {case: entry[case] for case in {cases[(number + step) % len(cases)]: None for step in (0, 2)}}


def check_some(kind: str, name: str) -> None:
    """Compares some of an entry."""
    entry = some(kind, name)
    there = {"*", *entry.get("replicas", ())}
    intended = [one for one in exceptions() if one.at[0] != "replicas" or one.at[1] in there]
    shown = Part(kind, 0, "", {name: canonical(entry)})
    if (found := Comparison(shown, _reader(kind), intended).difference(name)) is not None:
        pytest.fail(found, pytrace=False)
