"""Tests of the ladder: its rungs, that they only go up, and that its page agrees with the command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.formats import FORMATS
from corepipe.planning.profiling.ladder import LadderWork, RungSetting, _LadderTimes, ladder
from tests.planning.profiling.ladder_page import END, PAGE, START, example, table
from tests.servers import run

ORDER = ("one request at a time", "batching", "format", "both cores", "host transfers batched", "buckets",
         "speculation", "placement")  # fmt: skip

NEAR = 0.2
"""Share by which figures may differ before the page is rewritten."""


def climbed(model: str, *flags: str) -> dict[str, Any]:
    shown = run("profile", model, "--ladder", "--json", *flags)
    assert (shown.returncode, shown.stderr) == (0, "")
    document = json.loads(shown.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("vit-base-patch16-224", ()),
        ("bert-base", ("--input-len", "100", "--max-model-len", "512")),
        ("llama-3.2-1b", ("--input-len", "300", "--max-model-len", "2048", "--instance", "inf2.48xlarge")),
    ],
)
def test_every_step_is_a_rung_or_has_a_reason_and_none_goes_down(model: str, flags: tuple[str, ...]) -> None:
    found = climbed(model, *flags)
    rungs = found["rungs"]
    names = [rung["name"] for rung in rungs] + [step["name"] for step in found["without"]]
    assert sorted(names) == sorted(ORDER)
    assert [rung["name"] for rung in rungs] == [name for name in ORDER if name in names[: len(rungs)]]
    assert all(rung["gain"] >= 0.999 for rung in rungs)
    assert all(rung["why"] for rung in (*rungs, *found["without"]))
    total = rungs[-1]["per_second"] / rungs[0]["per_second"]
    gains = 1.0
    for rung in rungs:
        gains *= rung["gain"]
    assert total == pytest.approx(gains)
    assert rungs[-1]["setting"]["tensor"] * rungs[-1]["setting"]["data"] <= instance(found["instance"]).cores


def test_guesses_are_a_rung_where_it_is_said_how_often_they_are_right() -> None:
    """The gain of a step, less its longer time; and no rung where that is too long."""
    flags = ("llama-3.2-1b", "--input-len", "1", "--speculative-config")
    assumed = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.9, 0.6, 0.5],
    }
    found = climbed(*flags, json.dumps(assumed))
    (rung,) = [rung for rung in found["rungs"] if rung["name"] == "speculation"]
    assert found["assumed_acceptance_rates"] == assumed["synthetic_acceptance_rates"]
    assert rung["why"].startswith("3 tokens a step (assumed), which takes 1.")
    times = float(rung["why"].split()[-4])
    assert 1.2 < rung["gain"] < 3.01 / times  # prompts are computed as before
    found = climbed(*flags, json.dumps({**assumed, "synthetic_acceptance_rates": [0.01, 0, 0]}))
    assert "speculation" in [step["name"] for step in found["without"]]


def test_two_cores_are_twice_one() -> None:
    found = {rung.name: rung for rung in example().rungs}
    assert found["both cores"].gain == pytest.approx(2)
    assert found["both cores"].seconds == found["format"].seconds


def test_dollars_follow_from_the_price() -> None:
    for rung in example().rungs:
        assert rung.dollars == pytest.approx(0.758 / 3600 / rung.per_second * 1e6)


def test_a_draft_model_takes_its_time_and_its_memory() -> None:
    """A rung with a draft model is lower than with drafts that take no time, the lower the larger it is."""
    model, machine = architecture("llama-3.1-8b"), instance("trn2.3xlarge")
    work = LadderWork(model, FORMATS["bf16"], machine, PROFILES["vllm-neuron"], 100, 60, 256, (0.9, 0.8))
    found = []
    for name in (None, "llama-3.2-1b", "llama-3.2-3b"):
        draft = None if name is None else architecture(name)
        rungs = {rung.name: rung for rung in ladder(replace(work, draft=draft)).rungs}
        found.append(rungs["speculation"].per_second if "speculation" in rungs else 0.0)
    assert found[0] > found[1] > found[2] >= 0


def test_experts_are_divided_where_that_gives_more() -> None:
    """They are divided among a copy's tensor ranks, as by the native plugin; whole experts give less on
    the same placement."""
    model, machine = architecture("qwen1.5-moe"), instance("trn3.48xlarge")
    work = LadderWork(model, FORMATS["bf16"], machine, PROFILES["vllm-neuron-native"], 512, 64, 1024)
    best = ladder(work).rungs[-1]
    assert best.setting.expert == best.setting.tensor > 1
    assert f"experts divided among {best.setting.expert} cores" in best.why
    assert best.per_second > _LadderTimes(work).per_second(replace(best.setting, expert=1))


def test_experts_are_divided_as_the_software_does_it() -> None:
    """NxD Inference divides them for batches whose rows use all of them, older stacks never."""
    model, machine = architecture("olmoe-1b-7b"), instance("trn2.48xlarge")
    settings = {}
    for name, batch in (("vllm-neuron-native", 1), ("vllm-neuron", 1), ("vllm-neuron", 64), ("sync", 64)):
        bench = _LadderTimes(LadderWork(model, FORMATS["bf16"], machine, PROFILES[name], 512, 64, 1024))
        cuts = bench._cuts(RungSetting(FORMATS["bf16"], batch))
        settings[name, batch] = {cut.expert for cut in cuts if bench._is_served(cut)}
    assert settings["vllm-neuron-native", 1] == settings["vllm-neuron", 64] > {1}
    assert settings["vllm-neuron", 1] == settings["sync", 64] == {1}


def test_what_does_not_fit_a_core_is_refused() -> None:
    model, machine = architecture("llama-3.1-70b"), instance("inf2.48xlarge")
    with pytest.raises(UserError, match="does not fit one core"):
        ladder(LadderWork(model, FORMATS["bf16"], machine, PROFILES["vllm-neuron"], 100, 10, 128))


def test_its_page_says_what_the_command_says() -> None:
    """Steps and reasons agree word for word, figures within NEAR; else run python -m
    ...profiling.ladder_page."""
    written = PAGE.read_text().split(START)[1].split(END)[0]
    for line, made in zip(written.splitlines(), table(example()).splitlines(), strict=True):
        cells, now = ([cell.strip() for cell in text.strip("|").split("|")] for text in (line, made))
        assert cells[0] == now[0]
        for cell, figure in zip(cells[1:5], now[1:5], strict=True):
            if figure.replace(",", "").replace(".", "").isdigit():
                said, found = (float(text.replace(",", "")) for text in (cell, figure))
                assert said == pytest.approx(found, rel=NEAR)
            else:
                assert cell == figure
