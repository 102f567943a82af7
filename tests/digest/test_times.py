"""Predicted times are those that were frozen, to the last bit."""

from __future__ import annotations

import json
import math

import pytest

from corepipe.neuron.ops import attention
from tests.digest import check, times
from tests.digest.compare import Comparison
from tests.digest.forms import Json, canonical
from tests.digest.parts import Part
from tests.digest.write import timed

MODEL = "qwen3-0.6b"


@pytest.mark.parametrize("model", check.of_each_family("times"))
def test_one_model_of_each_family_takes_as_long_as_it_did(model: str) -> None:
    check.check_some("times", model)


@pytest.mark.digest
@pytest.mark.parametrize("number", range(check.SLICES))
def test_all_take_as_long_as_they_did(number: int) -> None:
    check.check_slice("times", number)


@pytest.fixture(scope="module")
def entry() -> Json:
    return times.read(MODEL, timed(MODEL))


def compared(entry: Json) -> Comparison:
    return Comparison(Part("times", 1, "", {MODEL: canonical(entry)}), check.read_times, ())


def test_one_unit_in_the_last_place_is_named(entry: Json) -> None:
    assert compared(entry).difference(MODEL) is None
    changed = json.loads(canonical(entry))
    case, step = next(case for case in changed if "pipeline 2" in case), "decode 32 at 1024"
    predicted = changed[case]["steps"][step]["predicted"]
    was = predicted["stages"][1]
    predicted["stages"][1] = math.nextafter(was, math.inf)
    assert compared(changed).difference(MODEL) == (
        f"times: {MODEL}: {case}/steps/{step}/predicted/stages/1: "
        f"{math.nextafter(was, math.inf)!r} was frozen, {was!r} is now"
    )


def test_a_changed_cost_is_named(entry: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "DMA_QUEUES", 15)
    found = compared(entry).difference(MODEL)
    assert found is not None
    assert found.startswith(f"times: {MODEL}: ")
    assert "/seconds/KV memory: " in found
