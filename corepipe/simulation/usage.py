"""The usage of a simulated deployment: its cores' time, its queue and its KV memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum

import numpy as np

from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.cost import CostModel, LimitingResource
from corepipe.simulation.columns import Floats, RecordTable
from corepipe.simulation.record import PlayedReplica, SimulationRecord

MOMENTS = 256
"""Moments of busy time, evenly spread, at which steps are taken apart."""

AT_ONCE = 1 << 16
"""The number of steps that are read at a time: a long run has millions."""


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
    def of(cls, record: SimulationRecord, seconds: float) -> DeviceUsage:
        """Sums up the usage in a run that took `seconds`."""
        timelines = [replica.timeline for replica in record.replicas]
        schedulers = [replica.scheduler for replica in record.replicas]
        steps, requests = record.steps, record.requests
        taken = _Taken.apart(record.replicas, steps)
        busy = [second for timeline in timelines for second in timeline.busy_seconds]
        blocks = record.limits.num_blocks
        held = [_Held.of(each) for each in steps]
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
            kv_peak=max([each.peak for each in held]) / max(1, blocks),
            kv_mean=_mean([each.blocks for each in held]) / max(1, blocks),
            batch_mean=_mean([each.sequences for each in held]),
            waiting_mean=fsum(requests["scheduled_at"] - requests["arrival"]) / seconds if seconds else 0.0,
            waiting_max=_most_waiting(requests["arrival"], requests["scheduled_at"]),
            preemptions=sum(scheduler.preemptions for scheduler in schedulers),
            prefix_queries=sum(scheduler.prefix_queries for scheduler in schedulers),
            prefix_hits=sum(scheduler.prefix_hits for scheduler in schedulers),
        )

    @property
    def bottleneck(self) -> str:
        """Returns the resource that the cores wait for most."""
        return max(self.bound, key=self.bound.__getitem__)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Steps taken apart, by the share of the time that each engine works and each bottleneck holds."""

    padding: float
    engines: dict[str, float]
    bound: dict[str, float]

    @classmethod
    def apart(cls, replicas: Iterable[PlayedReplica], steps: Sequence[RecordTable]) -> _Taken:
        rows = padded = total = 0.0
        engines, bound = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(map(str, LimitingResource), 0.0)
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


def _moments(
    replicas: Iterable[PlayedReplica], steps: Sequence[RecordTable]
) -> Iterator[tuple[CostModel, StepShape]]:
    """The steps that run at moments evenly spread over each replica's busy time."""
    count, names = (
        max(1, MOMENTS // len(steps)),
        ("rows", "logit_rows", "sequences", "kv_tokens", "attended", "longest", "each"),
    )
    for replica, of_replica in zip(replicas, steps, strict=True):
        if len(of_replica) == 0:
            continue
        parts = _Reread(of_replica, lambda steps: _busy_until(steps, *names))
        *_, (until, _) = parts
        moments = (np.arange(count) + 0.5) / count * until[-1]
        for until, shapes in parts:
            here = int(np.searchsorted(moments, until[-1], side="right"))
            at = np.searchsorted(until, moments[:here])
            moments = moments[here:]
            for row in shapes[:, at].T.astype(int).tolist():
                yield replica.timeline.cost, StepShape((row[0], row[1]), *row[2:])


def _busy_until(steps: RecordTable, *names: str) -> Iterator[tuple[Floats, Floats]]:
    """Yields for each part of the steps the busy seconds up to the end of each step, and the columns [names,
    steps]."""
    busy = 0.0
    for starts, ends, *columns in steps.parts(("starts_at", "ready_at", *names), AT_ONCE):
        until = np.cumsum(np.concatenate([[busy], ends - starts]))[1:]
        busy = until[-1]
        yield until, np.array(columns)


class _Reread:
    """Reads a table in parts, any number of times; a table of a single part is read once and kept."""

    def __init__(
        self, steps: RecordTable, read: Callable[[RecordTable], Iterator[tuple[Floats, Floats]]]
    ) -> None:
        self._steps, self._read = steps, read
        self._kept = list(read(steps)) if len(steps) <= AT_ONCE else None

    def __iter__(self) -> Iterator[tuple[Floats, Floats]]:
        return self._read(self._steps) if self._kept is None else iter(self._kept)


@dataclass(frozen=True, slots=True)
class _Held:
    """KV blocks that are held at most, and means of them and of a step's sequences over the time in which a
    step runs."""

    peak: float
    blocks: float
    sequences: float

    @classmethod
    def of(cls, steps: RecordTable) -> _Held:
        parts = _Reread(steps, lambda steps: _running(steps, "blocks_held", "sequences"))
        whole = fsum(chain.from_iterable(seconds.tolist() for seconds, _ in parts))
        peak = max([float(held[0].max()) for _, held in parts], default=0.0)
        if not whole:
            return cls(peak, 0.0, 0.0)
        blocks, sequences = (
            fsum(chain.from_iterable((seconds * held[column]).tolist() for seconds, held in parts))
            for column in (0, 1)
        )
        return cls(peak, blocks / whole, sequences / whole)


def _running(steps: RecordTable, *names: str) -> Iterator[tuple[Floats, Floats]]:
    """Yields for each part of the steps the seconds of each step, where steps overlap until the next begins,
    and the columns [names, steps]."""
    before: Floats | None = None
    for part in steps.parts(("starts_at", "ready_at", *names), AT_ONCE):
        if before is not None:
            yield _until(before, part[0, 0]), before[2:]
        before = part
    if before is not None:
        yield _until(before, before[1, -1]), before[2:]


def _until(part: Floats, next_start: float) -> Floats:
    """Seconds for which each of these steps runs."""
    starts, ends = part[0], part[1]
    seconds: Floats = np.minimum(np.append(starts[1:], next_start), ends) - starts
    return seconds


def _most_waiting(arrivals: Floats, scheduled: Floats) -> int:
    """The most requests that wait at once; one that is scheduled at once does not wait."""
    times = np.concatenate([scheduled, arrivals])
    changes = np.concatenate([np.full(len(scheduled), -1), np.full(len(arrivals), 1)])
    waiting = np.cumsum(changes[np.argsort(times, kind="stable")])
    return int(waiting.max(initial=0))


def _mean(values: list[float]) -> float:
    return fsum(values) / len(values)
