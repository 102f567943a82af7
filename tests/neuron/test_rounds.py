"""Predicted rounds equal the same rounds on a timeline."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import pytest

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.modes import compiler
from corepipe.neuron.timing.rounds import Rounds
from corepipe.neuron.timing.timeline import Timeline
from tests.simulation.simulations import Cost

CONTEXT = 256
SETTINGS = [
    ("tinyllama-1.1b", "inf2.48xlarge", 1, 4, "ideal"),
    ("tinyllama-1.1b", "inf2.48xlarge", 1, 4, "sync"),
    ("smollm2-135m", "inf1.24xlarge", 1, 3, "async"),
    ("smollm2-135m", "trn2.48xlarge", 1, 4, "sync"),
    ("gpt2", "trn1.32xlarge", 2, 3, "vllm-neuron"),
    ("llama-3.2-1b", "trn1.32xlarge", 4, 6, "nxdi"),
    ("llama-3.1-8b", "inf2.48xlarge", 2, 2, "vllm-host-sampling"),
]


def deployed(model: str, where: str, tensor: int, stages: int, profile: str, batch: int) -> CostModel:
    hardware, software = instance(where), PROFILES[profile]
    graph = architecture(model).graph(FORMATS["bf16"], 1024)
    programs = compiler(graph, hardware, software)(Placement(stages, tensor))
    return CostModel(programs, hardware, software, batch=batch)


def seconds(cost: CostModel, sequences: int, batches: int, rounds: int = 60) -> float:
    """Returns the seconds of a round in the steady state."""
    timeline, now = Timeline(cost), 0.0
    smaller, larger = divmod(sequences, batches)
    shapes = [StepShape.decode(smaller + (n < larger), CONTEXT) for n in range(batches)]
    ready: list[tuple[float, int]] = []
    ends = []
    for step in range(rounds * batches):
        if len(ready) == batches:
            now = max(now, heappop(ready)[0])
        timing = timeline.submit(shapes[step % batches], now)
        heappush(ready, (timing.ready_at, step))
        now = max(now, timing.accepts_at)
        ends.append(timing.ready_at)
    return (ends[-1] - ends[-1 - 30 * batches]) / 30


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("sequences", [1, 3, 8, 32])
def test_what_is_chosen_is_as_quick_as_any_number_on_the_timeline(setting, sequences):
    cost = deployed(*setting, batch=sequences)
    chosen = Rounds(cost, cost.profile).best(sequences, CONTEXT)
    found = {n: seconds(cost, sequences, n) for n in range(1, min(sequences, 2 * cost.stages) + 1)}
    assert chosen.seconds == pytest.approx(found[chosen.batches], rel=0.01)
    assert found[chosen.batches] <= 1.01 * min(found.values())


def test_one_more_batch_than_stages_covers_a_slow_host():
    """If a step's time is proportional to its rows, an extra batch is cheap, and hides the host's time."""
    cost = Cost(stages=2, fixed=0.1, row=1.0)
    rounds = {host: Rounds(cost, replace(PROFILES["ideal"], host_seconds=host)) for host in (0.0, 10.0)}
    assert {host: r.best(64, CONTEXT).batches for host, r in rounds.items()} == {0.0: 2, 10.0: 3}


def test_weights_are_not_read_for_batches_that_fill_no_stage():
    for users in (4, 8, 32):
        cost = deployed("llama-3.1-8b", "inf2.48xlarge", 2, 2, "async", batch=users)
        assert Rounds(cost, cost.profile).best(users, CONTEXT).batches == 2


def test_prompts_fill_the_stages_where_nobody_generates():
    cost = deployed("tinyllama-1.1b", "inf2.48xlarge", 1, 4, "ideal", batch=8)
    assert Rounds(cost, cost.profile).batches_with_prompts(0, 0, 512) >= 4


def test_prompts_go_among_those_who_generate_where_cores_share_a_memory():
    """Four cores of an inf1 chip have a quarter of its bandwidth each while other batches are in flight."""
    cost = deployed("gpt2", "inf1.24xlarge", 2, 2, "ideal", batch=32)
    rounds = Rounds(cost, cost.profile)
    assert rounds.generating_batches(32, 32 * 800) == 1
    assert rounds.batches_with_prompts(32, 32 * 800, 512) == 1
    assert rounds.batches_with_prompts(0, 0, 512) > 1
