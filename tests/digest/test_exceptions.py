"""An intended difference is listed in exceptions.json: it is exact, and an outside source proves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.digest.check import comparison
from tests.digest.compare import ABSENT, Comparison, ExceptionFault, Intended, apply, exceptions
from tests.digest.forms import Json, canonical
from tests.digest.parts import DATA, KINDS, Part, latest

OLD = {"steps": [{"stages": [1.0, 2.0], "sampling": 0.0}, {"stages": [1.0, 3.0]}]}
ROW = {
    "part": "times",
    "entry": "llama",
    "at": "steps/*/stages/0",
    "old": 1.0,
    "new": 1.5,
    "evidence": "a measurement, table 3 of a published report",
}


def listed(tmp_path: Path, *changes: dict[str, Json]) -> tuple[Intended, ...]:
    path = tmp_path / "exceptions.json"
    path.write_text(json.dumps([{**ROW, **change} for change in changes]))
    return exceptions(path)


def difference(now: Json, intended: tuple[Intended, ...]) -> str | None:
    part = Part("times", 1, "", {"llama": canonical(OLD)})
    return Comparison(part, lambda _name, _frozen: now, intended).difference("llama")


def new(first: float = 1.5, second: float = 1.5) -> Json:
    return {"steps": [{"stages": [first, 2.0], "sampling": 0.0}, {"stages": [second, 3.0]}]}


def test_what_it_covers_is_no_difference(tmp_path: Path) -> None:
    assert difference(new(), ()) == "times: llama: steps/0/stages/0: 1.0 was frozen, 1.5 is now"
    assert difference(new(), listed(tmp_path, {})) is None


def test_it_covers_nothing_else(tmp_path: Path) -> None:
    found = difference(new(second=1.25), listed(tmp_path, {}))
    assert found == "times: llama: steps/1/stages/0: 1.5 was frozen, 1.25 is now"
    other = listed(tmp_path, {"entry": "qwen"})
    assert difference(new(), other) == "times: llama: steps/0/stages/0: 1.0 was frozen, 1.5 is now"


def test_one_that_no_longer_differs_fails(tmp_path: Path) -> None:
    found = difference(OLD, listed(tmp_path, {}))
    assert found == "times: llama: steps/0/stages/0: 1.5 was frozen, 1.0 is now"


def test_one_whose_old_value_was_not_frozen_fails(tmp_path: Path) -> None:
    intended = listed(tmp_path, {"old": 7.0})
    found = difference(new(), intended)
    assert found == "exception times llama steps/*/stages/0: the frozen entry has no 7.0 there"
    part = Part("times", 1, "", {"llama": canonical(OLD)})
    for elsewhere in ({"entry": "*", "old": 7.0}, {"entry": "llamas"}):
        unused = Comparison(part, lambda _name, _frozen: OLD, listed(tmp_path, elsewhere)).unused()
        assert unused == [f"exception times {elsewhere['entry']} steps/*/stages/0 covers nothing"]
    assert Comparison(part, lambda _name, _frozen: OLD, listed(tmp_path, {"entry": "*"})).unused() == []


def test_a_field_that_comes_or_goes(tmp_path: Path) -> None:
    gone = {"at": "steps/0/sampling", "old": 0.0, "new": ABSENT}
    come = {"at": "steps/1/sampling", "old": ABSENT, "new": 4.0}
    now = {"steps": [{"stages": [1.0, 2.0]}, {"stages": [1.0, 3.0], "sampling": 4.0}]}
    assert difference(now, listed(tmp_path, gone, come)) is None
    assert difference(now, listed(tmp_path, come)) == (
        "times: llama: steps/0/sampling: 0.0 was frozen, nothing is now"
    )
    assert difference(now, listed(tmp_path, gone)) == (
        "times: llama: steps/1/sampling: nothing was frozen, 4.0 is now"
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"evidence": " "}, "exception times llama steps/.*/stages/0 has no evidence from outside"),
        ({"new": 1.0}, "old and new are the same"),
        ({"because": "it is better"}, "an exception has the fields part, entry, at, old, new, evidence, not"),
        ({"part": "prices"}, "the digest has the parts programs, times, tokens, not prices"),
    ],
)
def test_the_rules_of_the_file(tmp_path: Path, change: dict[str, Json], complaint: str) -> None:
    with pytest.raises(ExceptionFault, match=complaint):
        listed(tmp_path, change)


@pytest.mark.parametrize("kind", KINDS)
def test_each_that_is_listed_covers_something(kind: str) -> None:
    assert comparison(kind).unused() == []


def test_what_was_intended_beside_the_first_times_is_in_the_part_that_holds() -> None:
    """A new part of times has the new values, so the exceptions end with the part that they were for."""
    part = latest("times")
    for was in exceptions(DATA / "exceptions-times-1.json"):
        back = Intended(was.part, was.entry, was.at, was.new, was.old, was.evidence)
        assert apply(back, part.entry(was.entry)), str(was)
