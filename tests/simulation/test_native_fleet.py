"""Native replicas against the loop, the schedulers and the time lines that serve: the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.models import registry
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import policy
from corepipe.simulation import native_fleet
from corepipe.simulation.columns import Columns
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.native_fleet import has_native_replicas
from corepipe.simulation.packed_record import PackedRecord
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.record import STEP_COLUMNS, SimulationRecord
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import run
from corepipe.simulation.usage import _Held
from corepipe.workload.slo import Slo
from corepipe.workload.workload import PrefixTree, Segment, Session, Turn, Workload
from tests.simulation.simulations import Cost, bytes_of, check_at_rest, limits, play, situation, workload


def native_and_looped(of: dict[str, Any]) -> PackedRecord:
    native, plain = play(**of), play(**of, native=False)
    assert isinstance(native, PackedRecord)
    assert bytes_of(native) == bytes_of(plain)
    assert native.drafted == plain.drafted
    assert others_of(native) == others_of(plain)
    check_at_rest(native)
    return native


def others_of(record: SimulationRecord) -> list[tuple[float, float]]:
    lines = [replica.timeline for replica in record.replicas]
    return [(line.hand_over_seconds, line.draft_seconds) for line in lines]


def crowded(seed: int) -> dict[str, Any]:
    """One stage, few blocks or layers with windows, prompts in chunks, and up to forty replicas."""
    rng = random.Random(seed)
    of = situation(seed)
    cost = of["cost"][0]
    of["cost"] = [Cost(1, cost.fixed, cost.row, cost.kv, cost.draw)] * rng.choice([1, 1, 2, 5, 40])
    of["windows"] = rng.choice([(None,), (None,), (None, 24), (16, 40), (None, 5, 64)])
    of["num_blocks"] = rng.choice([300, 600]) * len(of["windows"]) // of["block_size"]
    return of


@pytest.mark.parametrize(
    "seeds", [range(30, 35), pytest.param(range(35, 300), marks=pytest.mark.slow)], ids=len
)
def test_it_decides_as_those_that_serve(seeds: Sequence[int]) -> None:
    for seed in seeds:
        native_and_looped(crowded(seed))


def piped(seed: int) -> dict[str, Any]:
    """A pipeline of two to eight stages that take unequal times, and others while it is full; few blocks or
    layers with windows, prompts in chunks, and up to twenty replicas."""
    rng = random.Random(seed)
    of = {**crowded(seed), "max_num_seqs": rng.choice([2, 7, 16, 40])}
    stages, beside, uneven = (
        rng.choice([2, 3, 4, 8]),
        rng.choice([1.0, 1.3, 2.0]),
        rng.choice([1.0, 1.1, 0.7]),
    )
    of["cost"] = [replace(cost, stages=stages, beside=beside, uneven=uneven) for cost in of["cost"][:20]]
    return of


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)], ids=len)
def test_pipelines_decide_as_those_that_serve(seeds: Sequence[int]) -> None:
    records = [native_and_looped(piped(seed)) for seed in seeds]
    replicas = [replica for record in records for replica in record.replicas]
    assert sum(replica.scheduler.preemptions for replica in replicas) > 1
    assert sum(replica.scheduler.prefix_hits for replica in replicas) > 500
    assert any(replica.timeline.fill > 0.5 for replica in replicas)
    assert all(
        replica.timeline.hand_over_seconds > 0 for replica in replicas if replica.timeline.work_seconds
    )


def test_replicas_of_real_pipelines_have_the_times_of_their_own_links() -> None:
    """Four replicas of three stages whose cores are as fast: some cross from chip to chip, others do not."""
    engine = EngineConfig(
        model="llama-3.2-1b", instance="trn1.32xlarge", tensor=1, pipeline=3, data=4, max_model_len=1024
    )
    device = plan_device(engine, registry.architecture(engine.model))
    first, *others = device.timelines()
    assert not all(one.same_times(first) for one in others)
    scenarios = [
        Scenario(limits(stages=3, num_blocks=2000), policy("mixed"), device.timelines(), workload(60, 50.0))
        for _ in range(2)
    ]
    native, plain = run(scenarios[0]), looped(scenarios[1])
    assert bytes_of(native) == bytes_of(plain)
    assert others_of(native) == others_of(plain)


@dataclass(frozen=True)
class Drafting(DraftTimes):
    """A draft model that takes so many seconds for each row of a step with drafts or prompts."""

    row: float

    def seconds(self, shape: StepShape) -> float:
        return self.row * shape.rows if shape.each > 1 or not shape.decodes else 0.0


def drafted(seed: int) -> dict[str, Any]:
    """Drafts that are accepted as often as assumed, some of a model that takes time; one stage or more."""
    rng = random.Random(seed)
    cost: Any = Cost()
    return {
        **rng.choice([crowded, piped])(seed),
        "rates": rng.choice([(0.9, 0.7, 0.5), (0.4,), (1.0, 1.0), (0.8, 0.6, 0.4, 0.3, 0.2, 0.1, 0.0)]),
        "draft": rng.choice([None, Drafting(cost, 1e-4)]),
        "draft_rows": rng.choice([None, 4, 30]),
    }


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)], ids=len)
def test_drafts_are_made_and_accepted_as_by_those_that_serve(seeds: Sequence[int]) -> None:
    records = [native_and_looped(drafted(seed)) for seed in seeds]
    counts = [replica for record in records for replica in record.drafted]
    assert sum(count.accepted for count in counts) > 500
    assert sum(count.tokens - count.accepted for count in counts) > 500
    assert any(seconds for record in records for _, seconds in others_of(record))


END_BETWEEN = 2691479797
"""An end on one replica comes between a landing and the next submission of another."""


@pytest.mark.parametrize(
    "seeds", [[END_BETWEEN, *range(20)], pytest.param(range(20, 200), marks=pytest.mark.slow)], ids=len
)
def test_all_kinds_of_deployments_write_the_same_bytes(seeds: Sequence[int]) -> None:
    records = []
    for of in map(situation, seeds):
        record = play(**of)
        assert bytes_of(record) == bytes_of(play(**of, native=False))
        check_at_rest(record)
        records.append(record)
    schedulers = [replica.scheduler for record in records for replica in record.replicas]
    assert sum(scheduler.preemptions for scheduler in schedulers) >= 5
    assert sum(scheduler.prefix_hits for scheduler in schedulers) > 500
    assert sum(record.rejected["overloaded"] for record in records) > 5


@pytest.mark.parametrize("profile", ["ideal", "sync"])
@pytest.mark.parametrize("rate", [0.5, 2.0, float("inf")])
def test_steps_that_are_timed_together_are_the_same_to_the_last_bit(profile: str, rate: float) -> None:
    load = workload(40, rate, input_len="uniform:1:80", output_len="uniform:20:300")
    cost = [Cost(1, 0.0123, 1e-4, 1.7e-6, 3e-4), Cost(1, 0.0123, 1e-4, 1.7e-6, 3e-4)]
    native_and_looped({"load": load, "cost": cost, "profile": profile})


@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_may_be_what_another_one_was_answered(seed: int) -> None:
    """Keys are those of segments, whoever made them: prompts take up answers and beginnings."""
    rng = random.Random(seed)

    def sessions() -> list[Session]:
        own = random.Random(seed)
        return [
            Session(
                number / 4,
                (
                    Turn(
                        (Segment(-1, 30), Segment(own.randrange(number + 1), own.randint(1, 60))),
                        own.randint(1, 50),
                        own.randrange(number + 1),
                    ),
                ),
            )
            for number in range(60)
        ]

    load = Workload(lambda: iter(sessions()), chained=False)
    record = native_and_looped({"load": load, "block_size": 8, "num_blocks": rng.choice([40, 200])})
    assert sum(replica.scheduler.prefix_hits for replica in record.replicas) > 100


def test_each_of_many_replicas_is_found_by_what_it_alone_has() -> None:
    """130 prompts at once, one for each replica; then all of them again, each of which goes where it was."""
    replicas = 130

    def sessions() -> list[Session]:
        starts = [*[0.0] * replicas, *(100.0 + number for number in range(replicas))]
        prompts = [Segment(number % replicas, 64) for number in range(2 * replicas)]
        return [
            Session(start, (Turn((prompt,), 2, 1000 + number),))
            for number, (start, prompt) in enumerate(zip(starts, prompts, strict=True))
        ]

    load = Workload(lambda: iter(sessions()), chained=False)
    record = native_and_looped({"load": load, "cost": [Cost()] * replicas, "block_size": 16})
    assert {replica.scheduler.prefix_hits for replica in record.replicas} == {48}


def test_who_is_preempted_and_admitted_again_is_once_in_a_batch() -> None:
    """Prompts of one beginning are computed at once, by each for itself; who comes back shares a copy, and
    finds room in the batch that it was preempted for."""
    load = workload(8, float("inf"), input_len=5, output_len=40, prefixes=PrefixTree(((1, 60),)))
    record = native_and_looped(
        {"load": load, "block_size": 4, "num_blocks": 75, "max_num_seqs": 16, "max_num_batched_tokens": 512}
    )
    assert sum(replica.scheduler.preemptions for replica in record.replicas) > 0


def looped(scenario: Scenario) -> SimulationRecord:
    return LoopedSimulation(scenario).run()


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_run_is_lost_at_the_same_request(replicas: int, stages: int) -> None:
    """In native replicas and in the loop."""
    found = []
    for play_it in (run, looped):
        early_stop = EarlyStop(Slo(ttft=0.4, tpot=0.05), most=20)
        cost: Any = Cost(stages, fixed=0.03)
        timelines = [Timeline(cost, PROFILES["ideal"]) for _ in range(replicas)]
        load = workload(400, 8.0 * replicas, prefixes=PrefixTree(((2, 40),)))
        play_it(Scenario(limits(stages=stages), policy("mixed"), timelines, load, early_stop))
        found.append((early_stop.lost, early_stop.ttfts, early_stop.tpots))
    assert found[0] == found[1]
    assert found[0][0]


def test_what_cannot_run_is_refused_as_ever() -> None:
    sizes = [(10, 3), (3000, 3), (1 << 40, 3), (2000, 100), (2047, 1)]
    turns = [Turn((Segment(n, prompt),), answer, 100 + n) for n, (prompt, answer) in enumerate(sizes)]
    load = Workload(lambda: iter([Session(0.0, (turn,)) for turn in turns]), chained=False)
    record = native_and_looped({"load": load, "num_blocks": 200})
    assert record.rejected["invalid"] == 2
    record = native_and_looped({"load": load, "num_blocks": 126})
    assert record.rejected["invalid"] == 4


def test_without_the_native_module_the_loop_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    native = play(workload(30))
    monkeypatch.setattr(native_fleet, "_module", lambda: None)
    looped = play(workload(30))
    assert isinstance(native, PackedRecord)
    assert not isinstance(looped, PackedRecord)
    assert bytes_of(native) == bytes_of(looped)


def test_an_error_while_a_step_is_timed_ends_the_run() -> None:
    class Broken(Cost):
        def stage_seconds(self, shape: Any) -> list[float]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(workload(3), cost=Broken())


def test_a_request_takes_few_bytes_however_many_there_are() -> None:
    small, large = (play(workload(requests, 3.0)).nbytes / requests for requests in (500, 2000))
    assert large < 1.05 * small
    record = play(workload(2000, 3.0))
    assert record.nbytes < sum(map(len, record.steps)) * 28 + 2000 * 48 + len(record.gaps[0]) * 20


@pytest.mark.parametrize("rows", [1, 2, 7, 1000])
def test_sums_over_parts_of_a_table_are_those_of_the_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = play(workload(40), cost=Cost(row=1e-4, kv=1e-6))
    (packed,) = record.steps
    table = Columns(STEP_COLUMNS)
    table.extend(*(column.tolist() if name.endswith("_at") else column.astype(int).tolist()
                   for name, column in packed.columns.items()))  # fmt: skip
    whole = _Held.of(packed)
    monkeypatch.setattr("corepipe.simulation.usage.AT_ONCE", rows)
    assert _Held.of(packed) == _Held.of(table) == whole
    names = ("ready_at", "attended")
    for steps in (packed, table):
        assert np.array_equal(np.concatenate([*steps.parts(names, rows)], axis=1), [packed[n] for n in names])


def test_it_is_native_by_default() -> None:
    of = Scenario(limits(), policy("segregated"), [], workload(1))
    assert has_native_replicas(of)
    assert has_native_replicas(replace(of, limits=limits(stages=2)))
    assert has_native_replicas(replace(of, drafters=lambda number: SyntheticDrafter((0.5,), number)))
    assert not has_native_replicas(replace(of, max_batch_delay=0.1))
    states = {"state_span": limits().block_size, "num_states": limits().max_num_seqs}
    assert not has_native_replicas(replace(of, limits=replace(limits(), **states)))
