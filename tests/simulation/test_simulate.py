"""The loop over arrivals and replicas, against closed formulas and what must always hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import pytest

from corepipe.engine.assembly.device_plan import plan_device
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.deployment import Deployment, ReplicaParts
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Ready, Submit
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.models.registry import architecture
from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.clock import VirtualClock
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.report import Latencies
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.simulation.source import RETRY_SECONDS
from corepipe.workload.slo import Slo
from corepipe.workload.workload import PrefixTree, Segment, Session, Turn, Workload
from tests.null_executor import NullExecutor
from tests.simulation.simulations import Cost, bytes_of, check_at_rest, limits, play, workload


def config(**fields: Any) -> SimulationConfig:
    engine = EngineConfig(model="llama-3.2-1b", format="bf16", instance="inf2.xlarge", **fields)
    return SimulationConfig(engine, Slo(ttft=0.5, tpot=0.05))


def latencies(record: SimulationRecord) -> Latencies:
    return Latencies.of(record.requests)


def given(*requests: tuple[float, int, int]) -> Workload:
    """Requests of (arrival, prompt tokens, output tokens) that share nothing."""
    sessions = [
        Session(arrival, (Turn((Segment(2 * i, prompt),), output, 2 * i + 1),))
        for i, (arrival, prompt, output) in enumerate(requests)
    ]
    return Workload(lambda: iter(sessions), shares_prefixes=False, chained=False)


def test_a_request_alone_takes_its_steps() -> None:
    record = play(given((1.0, 200, 5)), cost=Cost(fixed=0.01, row=1e-4), max_num_batched_tokens=150)
    (ttft,), (e2e,) = latencies(record).ttft, latencies(record).e2e
    assert ttft == pytest.approx(0.02 + 200e-4)
    assert e2e == pytest.approx(0.02 + 200e-4 + 4 * 0.0101)
    assert record.requests["prompt_tokens"].tolist() == [200]


def test_who_comes_during_a_step_waits_for_its_end() -> None:
    record = play(given((0.0, 10, 3), (0.004, 10, 1)), cost=Cost(fixed=0.01))
    order = np.argsort(record.requests["arrival"])
    assert record.requests["scheduled_at"][order] == pytest.approx([0.0, 0.01])
    assert latencies(record).ttft[order] == pytest.approx([0.01, 0.016])


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_of_constant_service_waits_as_an_m_d_1_queue_does(load: float) -> None:
    """Pollaczek-Khinchine: load x service / 2 (1 - load)."""
    service = 0.02
    record = play(
        workload(20_000, load / service, input_len=16, output_len=1), cost=Cost(fixed=service), max_num_seqs=1
    )
    waited = latencies(record).queue.mean()
    assert waited == pytest.approx(load * service / (2 * (1 - load)), rel=0.1)


@pytest.mark.parametrize("batches", ["mixed", "segregated"])
def test_littles_law(batches: str) -> None:
    """Requests in the system, summed over time, are the times of all requests, summed."""
    record = play(workload(300, 6.0), cost=Cost(fixed=0.02, row=1e-4), batches=batches)
    (steps,) = record.steps
    inside = (steps["running"] * (steps["ready_at"] - steps["starts_at"])).sum()
    times = record.requests["last_at"] - record.requests["scheduled_at"]
    assert inside == pytest.approx(times.sum())


def test_a_closed_loop_never_has_more_requests_than_users() -> None:
    record = play(workload(200, None, users=5), cost=Cost(fixed=0.02))
    (steps,) = record.steps
    assert (steps["running"] + steps["waiting"]).max() == 5
    assert len(record.requests["arrival"]) == 200


def test_a_closed_loop_goes_at_the_servers_pace_and_an_open_one_at_its_own() -> None:
    def last_end(slow: float, rate: float | None, users: int | None) -> float:
        load = workload(100, rate, output_len=10, users=users)
        return float(play(load, cost=Cost(fixed=slow)).requests["last_at"].max())

    assert last_end(0.04, None, 4) == pytest.approx(2 * last_end(0.02, None, 4), rel=0.05)
    assert last_end(0.04, 2.0, None) == pytest.approx(last_end(0.02, 2.0, None), rel=0.05)


@pytest.mark.parametrize("batches", ["mixed", "segregated"])
@pytest.mark.parametrize(("stages", "users"), [(2, 3), (3, 6), (3, 8), (3, 12), (4, 16)])
def test_users_of_a_pipeline_are_served_alike(stages: int, users: int, batches: str) -> None:
    """One batch a stage fills the pipe where a smaller batch is quicker."""
    load = workload(3 * users, None, input_len=20, output_len=200, users=users)
    record = play(load, cost=Cost(stages, row=1e-3), batches=batches, max_num_seqs=users)
    times = latencies(record)
    assert times.ttft.max() < 3 * users * 0.02
    assert times.tpot.max() < 1.05 * times.tpot.min()
    if users >= 2 * stages:
        assert record.replicas[0].timeline.fill > 0.85


def test_no_session_of_a_closed_loop_starts_after_its_duration() -> None:
    record = play(workload(None, None, users=3, duration=20.0), cost=Cost(fixed=0.02))
    assert 15 < record.requests["arrival"].max() <= 20.0


def test_the_next_turn_comes_when_the_last_is_answered_and_finds_it_in_the_cache() -> None:
    load = workload(3, 1.0, input_len=64, output_len=33, turns=3, think_seconds=2.0)
    record = play(load, cost=Cost(fixed=0.01))
    order = np.argsort(record.requests["arrival"])
    arrival, last = record.requests["arrival"][order], record.requests["last_at"][order]
    assert arrival[1:] == pytest.approx(last[:-1] + 2.0)
    # The last token of an answer is never computed: 96 of 97 tokens are cached, then 192 of 194.
    assert record.requests["cached_tokens"][order].tolist() == [0, 96, 192]


def test_shared_prefixes_are_found_and_only_those() -> None:
    tree = PrefixTree(((1, 64), (2, 32)))
    record = play(workload(40, 0.5, input_len=20, output_len=4, prefixes=tree))
    assert set(record.requests["cached_tokens"].tolist()) == {0.0, 64.0, 96.0}
    alone = play(workload(40, 0.5, input_len=200, output_len=4))
    assert alone.requests["cached_tokens"].sum() == 0


def test_a_full_queue_refuses_and_users_come_back() -> None:
    record = play(workload(30, float("inf")), max_queued_requests=4)
    assert record.rejected["overloaded"] == 26
    check_at_rest(record)
    record = play(workload(60, None, users=9), max_queued_requests=1, max_num_seqs=1)
    assert record.rejected["overloaded"] > 0
    assert record.requests["arrival"].max() > RETRY_SECONDS
    check_at_rest(record)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_same_seed_writes_the_same_bytes(stages: int) -> None:
    runs = [bytes_of(play(workload(80, seed=seed), cost=Cost(stages))) for seed in (4, 4, 5)]
    assert runs[0] == runs[1] != runs[2]


def test_a_real_model_on_an_instance() -> None:
    """The same bytes of report each time, whether the device is planned here or handed in."""
    load = workload(60, 4.0, input_len=300, output_len=40, prefixes=PrefixTree(((2, 128),)))
    device = plan_device(
        config().engine.model_copy(update={"clock": "virtual"}), architecture("llama-3.2-1b")
    )
    told: list[float] = []
    first = simulate(config(), load, lambda _, done: told.append(done))
    assert first.to_json() == simulate(config(), load, device=device).to_json()
    assert (first.sent, first.completed, sum(first.rejected.values())) == (60, 60, 0)
    assert told[-1] == 1.0
    assert told == sorted(told)


def test_the_profile_decides_the_policy_unless_one_is_given() -> None:
    load = workload(30, 20.0, input_len=300, output_len=40)
    reports = [simulate(config(policy=name), load) for name in (None, "segregated", "mixed")]
    texts = [report.to_json() for report in reports]
    assert texts[0] == texts[1] != texts[2]


Asked = list[tuple[float, int, int]]


@dataclass(frozen=True)
class Worked(Cost):
    """A cost that also says what engines do, which a server tells."""

    def stage_totals(self, shape: StepShape) -> list[tuple[float, Engines]]:
        return [(seconds, Engines(tensor=seconds)) for seconds in self.stage_seconds(shape)]


class Arrivals:
    """A source of a driver that serves: submits come at their times."""

    def __init__(self, driver: Driver, clock: VirtualClock, submits: Sequence[tuple[float, Submit]]) -> None:
        self._driver, self._clock, self._submits = driver, clock, list(submits)

    def next_arrival(self) -> float:
        return self._submits[0][0] if self._submits else inf

    def receive(self) -> bool:
        coming, event = self.next_arrival(), self._driver.next_event()
        if event <= coming:
            return event < inf
        self._clock.wait_until(coming)
        self._driver.handle(self._submits.pop(0)[1])
        return True


def served(config: SchedulerConfig, batches: str, costs: Sequence[Worked], asked: Asked) -> list[list[float]]:
    """Arrival (s), time to the first token and in all (ms) of each request that a driver answers."""
    clock = VirtualClock()
    parts = tuple(
        ReplicaParts(NullExecutor(5000), Timeline(cost, PROFILES["ideal"]), config, policy(batches))  # type: ignore[arg-type]
        for cost in costs
    )
    ready = Ready({}, config.num_blocks, config.block_size, config.max_model_len, "none", 0.0)
    driver = Driver(Deployment(parts, clock, 5000, 0, ready))
    submits = [
        (at, Submit(str(number), [number % 5000] * prompt, tokens, TokenSampling(temperature=0.0)))
        for number, (at, prompt, tokens) in enumerate(asked)
    ]
    outputs: list[Output] = []
    for _ in driver.turns(Arrivals(driver, clock, submits)):
        outputs += driver.outputs()
    times = [output.device for output in outputs if output.device is not None]
    return [
        [t.arrived_at_s, t.time_to_first_token_ms, t.total_ms]
        for t in sorted(times, key=lambda t: (t.arrived_at_s, t.total_ms))
    ]


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 100))]
)
def test_it_decides_as_the_driver_does_that_serves(seed: int) -> None:
    """Request for request and to the last bit."""
    rng = random.Random(seed)
    at = np.cumsum([rng.expovariate(rng.choice([1.0, 20.0])) for _ in range(rng.randint(5, 40))]).tolist()
    asked = [(when, rng.randint(1, 150), rng.randint(1, 60)) for when in at]
    stages, batches = rng.choice([1, 1, 2, 3]), rng.choice(["mixed", "segregated"])
    costs = [Worked(stages, 0.0123, 1e-4, 1.7e-6)] * rng.choice([1, 1, 2, 3])
    changes = {
        "stages": stages,
        "num_blocks": rng.choice([20, 512]),
        "max_num_seqs": rng.choice([2, 8]),
        "max_model_len": 256,
        "prefix_cache": False,
    }
    record = play(given(*asked), cost=costs, batches=batches, **changes).requests
    ms = {name: (record[name] - record["arrival"]) * 1e3 for name in ("first_at", "last_at")}
    found = zip(record["arrival"], ms["first_at"], ms["last_at"], strict=True)
    simulated = sorted((list(map(float, row)) for row in found), key=lambda row: (row[0], row[2]))
    assert simulated == served(limits(**changes), batches, costs, asked)
