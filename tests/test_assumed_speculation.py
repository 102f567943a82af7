"""Speculation with an assumed acceptance: the same answers, sooner, and the same steps in a server at the
device's pace and in a simulation."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Stats, Submit
from corepipe.engine.speculative_config import SpeculativeConfig, read_speculation
from corepipe.errors import UserError
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.workload import Segment, Session, Turn, Workload
from tests.engine.engine_support import by_request, run
from tests.test_speculation import BESIDE, engine, plain, played, submits
from tests.test_speculation import told as without_speed

RATES = (0.8, 0.6, 0.4, 0.1)
GUESSES: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": list(RATES),
}
TIMED: dict[str, Any] = {"timing_model": "llama-3.1-8b", "instance": "inf2.xlarge", "format": "bf16"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {**BESIDE, "max_num_batched_tokens": 96},
        {"pipeline": 2, "max_num_batched_tokens": 33, "threads": 2},
        {"data": 2, "policy": "segregated"},
        {"clock": "host", "timing_model": "llama-3.1-8b", "instance": "inf2.24xlarge"},
    ],
    ids=["roomy", "preempted", "pipeline", "replicas", "host's pace"],
)
def test_answers_are_those_without(options: dict[str, Any]) -> None:
    """Answers are greedy, drawn, with penalties, biases, logprobs and grammars; one ends with an error."""
    news, stats = played(submits(), speculative_config=GUESSES, **{"clock": "virtual", **options})
    assert without_speed(news) == plain()
    assert sum(s.accepted_tokens for s in stats) > 100
    told = [outputs[-1].speculated for outputs in news.values()]
    assert all(one is not None and one.assumed for one in told)
    assert sum(sum(one.histogram) for one in told if one) == sum(s.drafts for s in stats)
    assert sum(s.blocks_held for s in stats) == 0
    assert "num_blocks" not in options or sum(s.preemptions for s in stats) > 0


LENGTHS = [(20 + 37 * n % 150, 30 + 53 * n % 90) for n in range(24)]
"""Lengths of prompts and answers."""


def _served(driver: Driver) -> tuple[dict[str, list[Output]], Stats]:
    for number, (prompt, answer) in enumerate(LENGTHS):
        driver.handle(Submit(str(number), [7 + number] * prompt, answer))
    news = by_request(run(driver))
    (stats,) = driver.stats()
    driver.close()
    return news, stats


def _simulated(config: EngineConfig) -> SimulationReport:
    def sessions() -> Any:
        for number, (prompt, answer) in enumerate(LENGTHS):
            turn = Turn((Segment(2 * number, prompt),), answer, 2 * number + 1)
            yield Session(0.0, (turn,))

    return simulate(SimulationConfig(config), Workload(sessions, requests=len(LENGTHS)))


DRAFTED = {**GUESSES, "method": "draft_model", "model": "llama-3.2-1b"}


@pytest.mark.parametrize(
    ("guesses", "more"),
    [
        (GUESSES, {}),
        (DRAFTED, {}),
        (DRAFTED, {"pipeline": 2, "tensor": 2, "instance": "inf2.24xlarge"}),
        (DRAFTED, {"profile": "vllm-host-sampling"}),
    ],
    ids=["for nothing", "draft model", "in a pipeline", "tokens drawn on the host"],
)
def test_simulated_steps_are_those_of_the_server_at_the_devices_pace(
    guesses: dict[str, Any], more: dict[str, Any]
) -> None:
    """Each first and each last token comes at the same time, with the same number of steps and of accepted
    drafts, and the same share of a draft model, which is only timed."""
    options = {**TIMED, "max_model_len": 256, "max_num_seqs": 8, "prefix_cache": False, **more}
    driver = engine(speculative_config=guesses, clock="virtual", **options)
    drafting = driver.replicas[0].timeline
    news, stats = _served(driver)
    timed = EngineConfig(
        model=TIMED["timing_model"],
        speculative_config=SpeculativeConfig(**guesses),
        **{name: value for name, value in options.items() if name != "timing_model"},
    )
    report = _simulated(timed)
    drafts = report.drafts
    assert drafts is not None
    assert drafts.document()["assumed"] is True
    assert (drafts.drafts, drafts.tokens) == (stats.drafts, stats.draft_tokens)
    assert list(drafts.accepted_per_position) == stats.accepted_per_position
    assert report.usage.steps == stats.steps
    devices = [outputs[-1].device for outputs in news.values()]
    for name, served in (
        ("first_at", sorted(d.time_to_first_token_ms for d in devices if d)),
        ("last_at", sorted(d.total_ms for d in devices if d)),
    ):
        assert sorted(1e3 * report.requests[name]) == pytest.approx(served, rel=1e-9)
    share = drafting.draft_seconds * drafting.cost.tensor / sum(drafting.busy_seconds)
    assert drafts.draft_share == pytest.approx(share, rel=1e-9)
    assert (share > 0.1) == (guesses is DRAFTED)
    assert drafts.document().get("draft_model") == guesses.get("model")
    alone = _simulated(timed.model_copy(update={"speculative_config": None}))
    assert guesses is DRAFTED or report.seconds < alone.seconds
    assert "speculation" not in alone.document()


def test_acceptance_in_is_acceptance_out() -> None:
    """The acceptance by position, of the drafts of steps that had room for all of them: within five
    deviations."""
    long = Workload(
        lambda: (Session(0.0, (Turn((Segment(n, 16),), 2000, 100 + n),)) for n in range(8)), requests=8
    )
    config = EngineConfig(
        model="llama-3.1-8b",
        instance="inf2.24xlarge",
        format="bf16",
        max_model_len=4096,
        speculative_config=SpeculativeConfig(**GUESSES),
    )
    found = simulate(SimulationConfig(config), long).drafts
    assert found is not None
    assert found.drafts > 5000
    shares = [right / found.drafts for right in found.accepted_per_position]
    for share, rate in zip(shares, RATES, strict=True):
        assert abs(share - rate) < 5 * (rate * (1 - rate) / found.drafts) ** 0.5 + 1e-3
    assert all(one > other for one, other in pairwise(shares))
    assert found.tokens_a_step == pytest.approx(1 + sum(RATES), abs=0.05)


def test_a_length_stands_for_the_rates_that_vary_least() -> None:
    """The rates are those of vLLM's examples (tests/v1/spec_decode, `_acceptance_length_to_rates`)."""
    for length, most, rates in (
        (2.6, 3, [1.0, 0.6, 0.0]),
        (1.0, 3, [0.0, 0.0, 0.0]),
        (4.0, 3, [1.0, 1.0, 1.0]),
        (3.5, 4, [1.0, 1.0, 0.5, 0.0]),
    ):
        fields = {**GUESSES, "num_speculative_tokens": most, "synthetic_acceptance_length": length}
        del fields["synthetic_acceptance_rates"]
        assert read_speculation(fields).synthetic_rates == pytest.approx(rates)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"synthetic_acceptance_rates": [1.2, 0.6, 0.4, 0.1]}, "synthetic_acceptance_rates: 0: "),
        ({"synthetic_acceptance_rates": [0.5, 0.6, 0.4, 0.1]}, "synthetic_acceptance_rates rises"),
        ({"synthetic_acceptance_rates": [0.5]}, "1 rates for 4 num_speculative_tokens"),
        ({"synthetic_acceptance_rates": [0.5, float("nan"), 0, 0]}, "synthetic_acceptance_rates: 1: "),
        ({"synthetic_acceptance_length": 2.0}, "needs one of"),
        ({"synthetic_acceptance_rates": None}, "needs one of"),
        ({"synthetic_acceptance_rates": None, "synthetic_acceptance_length": 7}, "length 7 is more than 4"),
        ({"rejection_sample_method": "standard"}, "needs one of"),
        ({"rejection_sample_method": "block"}, "rejection_sample_method: "),
    ],
)
def test_what_cannot_be_assumed_is_told_in_a_line(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)) as caught:
        read_speculation({**GUESSES, **changes})
    assert "\n" not in str(caught.value)


def test_the_host_is_no_faster_for_what_is_assumed() -> None:
    with pytest.raises(UserError, match="add --clock device"):
        engine(speculative_config=GUESSES)


def test_a_prediction_beside_it_is_refused() -> None:
    driver = engine(speculative_config=GUESSES, clock="virtual")
    driver.handle(Submit("one", [1, 2, 3], 8, prediction=[4, 5]))
    (output,) = driver.turn()
    driver.close()
    assert (output.error_kind, (output.error or "").partition(":")[0]) == ("invalid", "prediction")


def test_placement_tells_what_is_assumed() -> None:
    driver = engine(speculative_config=GUESSES, clock="virtual")
    placement = driver._deployment.ready.placement
    driver.close()
    assert placement["assumed_acceptance_rates"] == list(RATES)
