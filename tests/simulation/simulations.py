"""Simulations without a model: flat step times, small limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.policy import policy
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.record import Record
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import run
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic, Workload


@dataclass(frozen=True)
class Cost:
    """Seconds of a step on each stage; `draw` for its tokens, on the host."""

    stages: int = 1
    fixed: float = 0.01
    row: float = 0.0
    kv: float = 0.0
    draw: float = 0.0
    tensor: int = 1

    @property
    def lone(self) -> Cost:
        return self

    def same_times(self, other: Cost) -> bool:
        return self == other

    def padded(self, shape: StepShape) -> StepShape:
        return shape

    def stage_seconds(self, shape: StepShape) -> list[float]:
        return [self.fixed + self.row * shape.rows + self.kv * shape.kv_tokens] * self.stages

    def decode_seconds(self, sequences: int, kv_tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.stack([self.fixed + self.row * sequences + self.kv * kv_tokens] * self.stages)

    def transfer_seconds(self, stage: int, shape: StepShape) -> float:
        return 1e-4 * self.fixed if stage else 0.0

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
    step_by_step: bool = False,
    native: bool = True,
    **changes: Any,
) -> Record:
    """Runs a workload over a replica for each cost; native: by native twins, where there are any."""
    costs = [cost] if isinstance(cost, Cost) else cost
    stages = costs[0].stages
    config = limits(**{"stages": stages, **changes})
    timelines = [Timeline(each, PROFILES[profile]) for each in costs]  # type: ignore[arg-type]
    of = Scenario(config, policy(batches), timelines, load)
    if native:
        return run(of, step_by_step=step_by_step)
    return LoopedSimulation(of, step_by_step=step_by_step).run()


def bytes_of(record: Record) -> list[bytes]:
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
    times = [x for r in record.replicas for x in (r.timeline.fill, *r.timeline.busy_seconds)]
    return [repr((counts, times)).encode(), *(column.tobytes() for column in columns)]


def check_at_rest(record: Record) -> None:
    """Every request ended once, and holds nothing."""
    assert record.sent == len(record.requests["arrival"]) + sum(record.rejected.values())
    for replica in record.replicas:
        scheduler: Any = replica.scheduler
        scheduler.check()
        assert (scheduler.unfinished, scheduler.blocks_held, scheduler.waiting) == (0, 0, 0)
