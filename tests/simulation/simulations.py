"""Simulations without a model: flat step times, small limits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.engine.drafters.synthetic import SyntheticDrafter
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import run
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import PrefixTree, Synthetic, Workload


@dataclass(frozen=True)
class Cost:
    """Seconds of a step on each stage; `draw` for its tokens, on the host.

    beside: the factor of a stage's seconds, and of those to reach it, where other batches are in the
    pipeline; `uneven`: by which each stage takes longer than the one before it.
    """

    stages: int = 1
    fixed: float = 0.01
    row: float = 0.0
    kv: float = 0.0
    draw: float = 0.0
    tensor: int = 1
    beside: float = 1.0
    uneven: float = 1.0

    @property
    def lone(self) -> Cost:
        return self if self.beside == 1.0 else replace(self, beside=1.0)

    def same_times(self, other: Cost) -> bool:
        return self == other

    def padded(self, shape: StepShape) -> StepShape:
        return shape

    def stage_seconds(self, shape: StepShape) -> list[float]:
        seconds = self.beside * (self.fixed + self.row * shape.rows + self.kv * shape.kv_tokens)
        return [seconds * self.uneven**stage for stage in range(self.stages)]

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        seconds = self.beside * (self.fixed + self.row * sequences + self.kv * kv_tokens)
        return np.stack([seconds * self.uneven**stage for stage in range(self.stages)])

    def transfers(self, _shape: StepShape) -> list[float]:
        return [0.0, *[1e-4 * self.beside * self.fixed] * (self.stages - 1)]

    def input_seconds(self, _shape: StepShape) -> float:
        return 0.0

    def result_seconds(self, _shape: StepShape) -> float:
        return 0.0

    def sampling_seconds(self, shape: StepShape) -> float:
        return self.draw * shape.logit_rows


def limits(**changes: Any) -> SchedulerConfig:
    fields: dict[str, Any] = {
        "num_blocks": 512,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 2048,
        "prefix_cache": True,
        "max_queued_requests": 10**9,
        "max_queued_tokens": 10**9,
        **changes,
    }
    return SchedulerConfig(**fields)


def lengths(spec: str | int) -> Lengths:
    return Lengths.parse(spec, "input-len")


def workload(
    requests: int | None = 100,
    rate: float | None = 5.0,
    input_len: str | int = "uniform:10:200",
    output_len: str | int = "uniform:1:60",
    **more: Any,
) -> Workload:
    arrivals = None if rate is None else Arrivals(rate)
    return Synthetic(lengths(input_len), lengths(output_len), requests, arrivals=arrivals, **more).workload()


def play(
    load: Workload,
    *,
    cost: Cost | Sequence[Cost] = Cost(),
    profile: str = "ideal",
    batches: str = "mixed",
    native: bool = True,
    rates: Sequence[float] | None = None,
    draft: DraftTimes | None = None,
    **changes: Any,
) -> SimulationRecord:
    """Runs a workload over a replica for each cost; native: over native replicas, where there are any.
    rates: the assumed acceptance of drafts; draft: the times of their model."""
    costs = [cost] if isinstance(cost, Cost) else cost
    stages = costs[0].stages
    config = limits(**{"stages": stages, **changes})
    timelines = [Timeline(each, PROFILES[profile], draft) for each in costs]  # type: ignore[arg-type]
    drafters = None if rates is None else lambda number: SyntheticDrafter(rates, number)
    of = Scenario(config, policy(batches), timelines, load, drafters=drafters)
    return run(of) if native else LoopedSimulation(of).run()


def situation(seed: int) -> dict[str, Any]:
    """A workload and a deployment of any kind: busy or idle, short of blocks or not, open or closed."""
    rng = random.Random(seed)
    closed, turns = rng.random() < 0.4, rng.choice([1, 1, 1, 3])
    tree = PrefixTree(((1, 40), (3, 30))) if rng.random() < 0.4 else PrefixTree()
    size = rng.choice([4, 16, 32])
    stages, replicas = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    load = workload(
        rng.randint(5, 40),
        None if closed else rng.choice([0.5, 3.0, 20.0, float("inf")]),
        input_len=rng.choice(["uniform:1:80", "uniform:1:200", "lognormal:40:1:300"]),
        output_len=rng.choice([1, 40, "uniform:1:90", "lognormal:30:1:200"]),
        users=rng.randint(1, 12) if closed else None,
        turns=turns,
        think_seconds=rng.choice([0.0, 0.0, 0.3]) if closed or turns > 1 else 0.0,
        prefixes=tree,
        seed=seed,
    )
    costs = [
        Cost(stages, rng.choice([0.01, 0.02]), rng.choice([0.0, 1e-4]), rng.choice([0.0, 1e-6]), draw)
        for draw in [rng.choice([0.0, 0.0, 1e-3])]
        for _ in range(replicas)
    ]
    return {
        "load": load,
        "cost": costs,
        "profile": rng.choice(["ideal", "async", "sync"]),
        "batches": rng.choice(["mixed", "segregated"]),
        "block_size": size,
        "num_blocks": rng.choice([300, 600, 20_000]) // size,
        "max_num_seqs": rng.choice([1, 4, 16]),
        "max_num_batched_tokens": rng.choice([16, 64, 512]),
        "prefix_cache": rng.random() < 0.6,
        "max_queued_requests": rng.choice([5, 10**6]),
    }


def bytes_of(record: SimulationRecord) -> list[bytes]:
    """All that was written down.  Rows a sequence, a later column, are left out where nobody guesses."""
    columns = [
        column
        for steps in record.steps
        for name, column in steps.columns.items()
        if name != "each" or (column != 1).any()
    ]
    columns += [*record.requests.values(), *record.gaps]
    counts = [record.sent, *record.rejected.values()]
    counts += [
        n for replica in record.replicas for s in [replica.scheduler]
        for n in (s.preemptions, s.prefix_hits, s.prefix_queries, s.blocks_cached, s.blocks_held)
    ]  # fmt: skip
    lines = [replica.timeline for replica in record.replicas]
    times = [x for line in lines for x in (line.fill, *line.busy_seconds)]
    return [repr((counts, times)).encode(), *(column.tobytes() for column in columns)]


def check_at_rest(record: SimulationRecord) -> None:
    """Every request ended once, and holds nothing."""
    assert record.sent == len(record.requests["arrival"]) + sum(record.rejected.values())
    for replica in record.replicas:
        scheduler: Any = replica.scheduler
        scheduler.check()
        assert (scheduler.unfinished, scheduler.blocks_held, scheduler.waiting) == (0, 0, 0)
