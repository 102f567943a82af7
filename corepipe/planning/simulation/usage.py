"""What a simulated deployment's cores did with their time, and what its queue and KV memory held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from corepipe.neuron.cost import ENGINES, Bottleneck, CostModel
from corepipe.neuron.step import StepShape
from corepipe.planning.simulation.columns import Floats, Table
from corepipe.planning.simulation.record import PlayedReplica, Record

MOMENTS = 256
"""Moments of busy time, evenly spread, at which steps are taken apart."""


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Shares are 0 to 1; means of things held are over the time in which a step runs.

    fill: share of the time in which all pipeline stages are busy; occupancy: busy share of the stages, both
    while there is work; hand_over: seconds of a step between its stages, mean; busy: of all cores, from the
    first arrival to the last token.  padding: of the rows that the device computes.  engines: how long each
    works, bound: what the cores wait for, as shares of their busy time, from steps at MOMENTS moments.
    """

    steps: int
    fill: float
    occupancy: float
    hand_over: float
    busy: float
    core_seconds: float
    padding: float
    engines: dict[str, float]
    bound: dict[str, float]
    kv_blocks: int
    kv_peak: float
    kv_mean: float
    batch_mean: float
    waiting_mean: float
    waiting_max: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int

    @classmethod
    def of(cls, record: Record, seconds: float) -> DeviceUsage:
        """Of a run that took `seconds`."""
        timelines = [replica.timeline for replica in record.replicas]
        schedulers = [replica.scheduler for replica in record.replicas]
        steps, requests = record.steps, record.requests
        taken = _Taken.apart(record.replicas, steps)
        busy = [second for timeline in timelines for second in timeline.busy_seconds]
        blocks = record.limits.num_blocks
        return cls(
            steps=sum(map(len, steps)),
            fill=_mean([timeline.fill for timeline in timelines]),
            occupancy=_mean([timeline.occupancy for timeline in timelines]),
            hand_over=fsum(t.hand_over_seconds for t in timelines) / max(1, sum(map(len, steps))),
            busy=_mean(busy) / seconds if seconds else 0.0,
            core_seconds=fsum(busy),
            padding=taken.padding,
            engines=taken.engines,
            bound=taken.bound,
            kv_blocks=blocks * len(record.replicas),
            kv_peak=max([float(s["blocks_held"].max(initial=0.0)) for s in steps]) / max(1, blocks),
            kv_mean=_mean([_time_mean(s, "blocks_held") for s in steps]) / max(1, blocks),
            batch_mean=_mean([_time_mean(s, "sequences") for s in steps]),
            waiting_mean=fsum(requests["scheduled_at"] - requests["arrival"]) / seconds if seconds else 0.0,
            waiting_max=_most_waiting(requests["arrival"], requests["scheduled_at"]),
            preemptions=sum(scheduler.preemptions for scheduler in schedulers),
            prefix_queries=sum(scheduler.prefix_queries for scheduler in schedulers),
            prefix_hits=sum(scheduler.prefix_hits for scheduler in schedulers),
        )

    @property
    def bottleneck(self) -> str:
        """What the cores wait for most."""
        return max(self.bound, key=self.bound.__getitem__)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Steps taken apart, by the share of the time that each engine works and each bottleneck holds."""

    padding: float
    engines: dict[str, float]
    bound: dict[str, float]

    @classmethod
    def apart(cls, replicas: Iterable[PlayedReplica], steps: Sequence[Table]) -> _Taken:
        rows = padded = total = 0.0
        engines, bound = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(map(str, Bottleneck), 0.0)
        for cost, shape in _moments(replicas, steps):
            rows += shape.rows
            padded += cost.padded(shape).rows
            for core in range(0, cost.stages * cost.tensor, cost.tensor):
                total += cost.seconds(core, shape)
                for name, part in cost.engine_seconds(core, shape).items():
                    engines[name] += part
                for kind, part in cost.explain(core, shape).seconds.items():
                    bound[str(kind)] += part
        total = total or 1.0
        return cls(
            padding=1 - rows / padded if padded else 0.0,
            engines={name: part / total for name, part in engines.items()},
            bound={name: part / total for name, part in bound.items()},
        )


def _moments(replicas: Iterable[PlayedReplica], steps: Sequence[Table]) -> Iterator[tuple[CostModel, StepShape]]:
    """The steps that run at moments evenly spread over each replica's busy time."""
    for replica, of_replica in zip(replicas, steps, strict=True):
        if len(of_replica) == 0:
            continue
        until = np.cumsum(of_replica["ready_at"] - of_replica["starts_at"])
        count = max(1, MOMENTS // len(steps))
        at = np.searchsorted(until, (np.arange(count) + 0.5) / count * until[-1])
        names = ("rows", "logit_rows", "sequences", "kv_tokens", "attended", "longest", "each")
        for row in np.stack([of_replica[name][at] for name in names], axis=1).astype(int).tolist():
            yield replica.timeline.cost, StepShape((row[0], row[1]), *row[2:])


def _time_mean(steps: Table, name: str) -> float:
    """Mean of a column over the time in which a step runs; where steps overlap, of the later one."""
    if len(steps) == 0:
        return 0.0
    starts, ends = steps["starts_at"], steps["ready_at"]
    seconds = np.minimum(np.append(starts[1:], ends[-1]), ends) - starts
    whole = fsum(seconds)
    return fsum(seconds * steps[name]) / whole if whole else 0.0


def _most_waiting(arrivals: Floats, scheduled: Floats) -> int:
    """The most requests that wait at once; one that is scheduled at once does not wait."""
    times = np.concatenate([scheduled, arrivals])
    changes = np.concatenate([np.full(len(scheduled), -1), np.full(len(arrivals), 1)])
    waiting = np.cumsum(changes[np.argsort(times, kind="stable")])
    return int(waiting.max(initial=0))


def _mean(values: list[float]) -> float:
    return fsum(values) / len(values)
