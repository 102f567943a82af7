"""Greedy tokens and their logprobs on portable kernels are those that were frozen, to the last bit."""

from __future__ import annotations

import json

import pytest

from tests.digest import check, tokens
from tests.digest.compare import Comparison, exceptions
from tests.digest.forms import Json, canonical
from tests.digest.models import family
from tests.digest.parts import Part
from tests.kernels.harness import needs_portable

FAMILY = "qwen3"


def asked(entries: dict[str, Json]) -> dict[str, Json]:
    """Returns the entries without their answers."""
    return {name: {k: v for k, v in e.items() if k not in ("isa", "answers")} for name, e in entries.items()}


def check_all(entries: dict[str, Json], answered: dict[str, Json]) -> None:
    part = Part("tokens", 1, "", {name: canonical(entry) for name, entry in entries.items()})
    comparison = Comparison(part, lambda name, _frozen: answered[name], exceptions())
    if found := [line for name in entries if (line := comparison.difference(name)) is not None]:
        pytest.fail("\n".join(found), pytrace=False)


def frozen() -> dict[str, Json]:
    return {name: check.part("tokens").entry(name) for name in check.part("tokens").entries}


def some() -> dict[str, Json]:
    """Returns each model with every format and every placement once, and one family with all placements of
    one format."""
    entries = frozen()
    names = [name for number, name in enumerate(entries) if (number // 4 + number // 16) % 4 == number % 4]
    family = [name for name in entries if name.startswith(f"{FAMILY} int8 ")]
    return {name: entries[name] for name in dict.fromkeys([*names, *family])}


@pytest.fixture(scope="module")
def answers() -> dict[str, Json]:
    return tokens.read(asked(some()))


@needs_portable
def test_answers_are_what_they_were(answers: dict[str, Json]) -> None:
    check_all(some(), answers)


@needs_portable
@pytest.mark.digest
def test_neither_threads_nor_numpys_instructions_matter() -> None:
    check_all(frozen(), tokens.read(asked(frozen()), threads=1, environment=check.other_machine()))


def test_families_of_then_were_asked_on_every_placement_in_every_format() -> None:
    entries = frozen().values()
    assert {family(entry["model"]) for entry in entries} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {entry["format"] for entry in entries} == {"fp32", "bf16", "int8", "int8-weights"}
    assert len(entries) == 4 * 4 * len({entry["model"] for entry in entries})


@needs_portable
def test_pipeline_and_data_parallel_answers_are_the_plain_ones(answers: dict[str, Json]) -> None:
    plain = answers[f"{FAMILY} int8 plain"]
    assert plain["isa"] == tokens.ISA
    for place in ("pipeline 2", "data 2"):
        assert answers[f"{FAMILY} int8 {place}"]["answers"] == plain["answers"]
    assert answers[f"{FAMILY} int8 tensor 2"]["answers"] != plain["answers"]


def changed(answers: dict[str, Json], place: str) -> tuple[dict[str, Json], Json]:
    """Returns a changed copy, and its answer to the second prompt at one placement."""
    copy = json.loads(canonical(answers))
    return copy, copy[f"{FAMILY} int8 {place}"]["answers"][1]


@needs_portable
def test_one_bit_of_a_logprob_is_named(answers: dict[str, Json]) -> None:
    copy, answer = changed(answers, "pipeline 2")
    was = answer["logprobs"][7]
    digit = was.index("p") - 8  # the last digit of fp32
    answer["logprobs"][7] = f"{was[:digit]}{'0' if was[digit] != '0' else '2'}{was[digit + 1 :]}"
    with pytest.raises(pytest.fail.Exception) as failure:
        check_all(copy, answers)
    assert f"tokens: {FAMILY} int8 pipeline 2: answers/1/logprobs/7: " in str(failure.value)
    assert f"{was} ({float.fromhex(was)!r}) is now" in str(failure.value)


@needs_portable
def test_another_token_is_named(answers: dict[str, Json]) -> None:
    copy, answer = changed(answers, "tensor 2")
    was = answer["tokens"][3]
    answer["tokens"][3] = was + 1
    with pytest.raises(pytest.fail.Exception) as failure:
        check_all(copy, answers)
    assert str(failure.value) == (
        f"tokens: {FAMILY} int8 tensor 2: answers/1/tokens/3: {was + 1} was frozen, {was} is now"
    )
