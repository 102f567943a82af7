"""Emulated device time of one replica: when each core runs each batch, and what its engines do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.chips.runtime_profile import RuntimeProfile
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.draft_times import DraftTimes
from corepipe.neuron.timing.rounds import Rounds


@dataclass(slots=True)  # not frozen, since one is made for each step
class Timing:
    """The times of a batch, in seconds of device time.

    submitted_at: the scheduler submits it; starts_at: the first stage begins; accepts_at: the earliest moment
    at which to submit the next batch so that it starts without delay; ready_at: the last stage is done and
    the tokens are sampled.
    stages: (start, end) of each; `tensor` cores run it.
    """

    submitted_at: float
    starts_at: float
    accepts_at: float
    ready_at: float
    stages: tuple[tuple[float, float], ...]
    tensor: int

    @property
    def spans(self) -> tuple[tuple[int, float, float], ...]:
        """(core, start, end), one per core, by core."""
        cores = (span for span in self.stages for _ in range(self.tensor))
        return tuple((core, start, end) for core, (start, end) in enumerate(cores))


class PlayedTimes(Protocol):
    """The times of batches that ran: each stage busy; all busy at once; with work to do; with batches in
    transit between stages; and of a draft model."""

    @property
    def busy_seconds(self) -> Sequence[float]: ...

    @property
    def overlap_seconds(self) -> float: ...

    @property
    def work_seconds(self) -> float: ...

    @property
    def hand_over_seconds(self) -> float: ...

    @property
    def draft_seconds(self) -> float: ...


class Timeline:
    """Runs batches through the stages in the order in which they are submitted.

    A stage begins when its cores are free and the activations of the stage before have arrived.  The cores of
    a stage run together and wait for the slowest.  A batch that finds the pipeline empty is timed as a lone
    one.  The host takes the profile's time for each batch, one after the other, in parallel with the device's
    work on earlier ones.  `draft`: the times of a draft model, whose passes the first stage runs before those
    of a batch.
    """

    def __init__(
        self, cost: CostModel, profile: RuntimeProfile | None = None, draft: DraftTimes | None = None
    ) -> None:
        self._cost = cost
        self._draft = draft
        self.draft_seconds = 0.0
        self._profile = profile or cost.profile
        self._rounds = Rounds(cost, self._profile)
        self._host_free = 0.0
        self._free = [0.0] * cost.stages
        self._busy = [0.0] * cost.stages
        self._overlap = _Overlap(cost.stages)
        self._hand_over_seconds = 0.0
        self._work_until = 0.0
        self._work_seconds = 0.0
        self._decoding = 0

    def submit(self, shape: StepShape, now: float) -> Timing:
        """Schedules a batch submitted at `now`; never moves batches that are already scheduled."""
        host = self._host_seconds(shape, self._decoding)
        self._decoding = shape.sequences if shape.decodes else 0
        self._host_free = max(self._host_free, now) + host
        arrives = self._host_free
        cost = self._cost.lone if arrives >= self._free[-1] else self._cost
        times = cost.stage_seconds(shape)
        if self._draft is not None:
            drafting = self.drafting_seconds(shape)
            self.draft_seconds += drafting
            times = [drafting + times[0], *times[1:]]
        stages: list[tuple[float, float]] = []
        free, busy = self._free, self._busy
        for stage, (moved, seconds) in enumerate(zip(cost.transfers(shape), times, strict=True)):
            self._hand_over_seconds += moved
            arrives += moved
            start = arrives if arrives > free[stage] else free[stage]
            free[stage] = arrives = start + seconds
            busy[stage] += arrives - start
            stages.append((start, arrives))
        self._overlap.add(stages)
        starts_at = stages[0][0]
        self._count_work(starts_at, arrives)
        accepts_at = max(self._host_free, self._free[0] - host)
        ready_at = arrives + self._cost.sampling_seconds(shape) + self._cost.result_seconds(shape)
        return Timing(now, starts_at, accepts_at, ready_at, tuple(stages), self._cost.tensor)

    def drafting_seconds(self, shape: StepShape) -> float:
        """Returns the seconds of the first stage for the draft model; 0 where there is none."""
        return 0.0 if self._draft is None else self._draft.seconds(shape)

    def _host_seconds(self, shape: StepShape, before: int) -> float:
        """Returns the host time for the next batch, before the device has all of it.

        It is longer where the batch's sequences are not those of the one before, which had `before`
        generating sequences and no other.  As many generating sequences are taken to be the same ones: a new
        sequence has had a prompt step in between.
        """
        sent, changed = self._cost.input_seconds(shape), self._profile.change_seconds
        if changed is None or (shape.decodes and before == shape.sequences):
            return self._profile.host_seconds + sent
        return changed + sent

    @property
    def cost(self) -> CostModel:
        """The cost model of the steps."""
        return self._cost

    @property
    def profile(self) -> RuntimeProfile:
        """The runtime profile, with the host's times."""
        return self._profile

    def ran(self, elsewhere: PlayedTimes) -> None:
        """Takes over the times of batches that ran elsewhere, on the same stages."""
        self._busy, self._overlap.seconds = list(elsewhere.busy_seconds), elsewhere.overlap_seconds
        self._work_seconds, self._hand_over_seconds = elsewhere.work_seconds, elsewhere.hand_over_seconds
        self.draft_seconds = elsewhere.draft_seconds

    def same_times(self, other: Timeline) -> bool:
        """Returns True if every step takes as long in both, and so do rounds."""
        if self._profile != other._profile or not self._cost.same_times(other._cost):
            return False
        if self._draft is None or other._draft is None:
            return self._draft is other._draft
        return self._draft.cost.same_times(other._draft.cost)

    @property
    def rounds(self) -> Rounds:
        """The rounds in which every sequence gets a token."""
        return self._rounds

    @property
    def busy_seconds(self) -> tuple[float, ...]:
        """Busy time of each core of the replica."""
        return tuple(busy for busy in self._busy for _ in range(self._cost.tensor))

    @property
    def hand_over_seconds(self) -> float:
        """Total time in which batches were in transit between stages."""
        return self._hand_over_seconds

    @property
    def work_seconds(self) -> float:
        """Time in which at least one batch was in the pipeline."""
        return self._work_seconds

    @property
    def fill(self) -> float:
        """Share of `work_seconds` in which all stages were busy; 0 before the first batch."""
        return self._overlap.seconds / self._work_seconds if self._work_seconds else 0.0

    @property
    def occupancy(self) -> float:
        """Busy share of `work_seconds`, mean over the stages; 0 before the first batch."""
        whole = self._work_seconds * len(self._busy)
        return sum(self._busy) / whole if whole else 0.0

    def _count_work(self, start: float, end: float) -> None:
        self._work_seconds += end - max(start, self._work_until)
        self._work_until = end


class _Overlap:
    """Adds up the time in which all stages are busy, from the spans of their batches, each stage's in order.

    _spans: of each stage those that are not counted yet, the oldest first; _starts, _ends: of the oldest.
    """

    def __init__(self, stages: int) -> None:
        self._spans: list[deque[tuple[float, float]]] = [deque() for _ in range(stages)]
        self._starts = [0.0] * stages
        self._ends = [0.0] * stages
        self._empty = stages
        self.seconds = 0.0

    def add(self, stages: Sequence[tuple[float, float]]) -> None:
        """Adds the (start, end) of a batch in each stage."""
        for stage, (spans, span) in enumerate(zip(self._spans, stages, strict=True)):
            if not spans:
                self._starts[stage], self._ends[stage] = span
                self._empty -= 1
            spans.append(span)
        while not self._empty:
            self._take()

    def _take(self) -> None:
        """Counts the common time of the oldest spans of all stages, and drops the one that ends first."""
        end = min(self._ends)
        self.seconds += max(0.0, end - max(self._starts))
        stage = self._ends.index(end)
        spans = self._spans[stage]
        spans.popleft()
        if spans:
            self._starts[stage], self._ends[stage] = spans[0]
        else:
            self._empty += 1


@dataclass(slots=True)
class StageActivity:
    """The activity of a core of a stage: seconds of each engine, in the order of `hardware.ENGINES`.

    `memory_bytes` were read from and written to device memory.
    """

    engines: list[float]
    flops: float = 0.0
    memory_bytes: float = 0.0

    def add(self, busy: float, seconds: float, totals: Engines) -> None:
        """Adds `busy` seconds of steps like one that takes `seconds` and does `totals`."""
        times = busy / seconds
        for at, name in enumerate(ENGINES):
            self.engines[at] += times * getattr(totals, name, 0.0)
        self.flops += times * totals.flops
        self.memory_bytes += times * (totals.read + totals.written)


class Activity:
    """The activity of the engines of one replica, estimated while serving from one step in many.

    To time each step Op by Op would cost as much as to schedule it.  Of the steps between two reads one is
    chosen, with a chance in proportion to its time, and stands for the busy time of all of them: the reported
    numbers grow as the exact sums do, and an engine is never busier than its core.  The cores of a stage do
    the same: its first stands for all.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._stages = [StageActivity([0.0] * len(ENGINES)) for _ in range(cost.stages)]
        self._counted = [0.0] * cost.stages
        self._random = Random(0)  # noqa: S311 -- a statistical sample, not a secret
        self._seconds = 0.0
        self._chosen: StepShape | None = None

    def add(self, shape: StepShape, seconds: float) -> None:
        """Counts a step that has run, its stages for `seconds` in all."""
        self._seconds += seconds
        if self._chosen is None or self._random.random() * self._seconds < seconds:
            self._chosen = shape

    def look(self, busy: tuple[float, ...]) -> list[StageActivity]:
        """Returns the activity of each stage since the start; `busy` is how long each core of the replica has
        worked."""
        if self._chosen is not None:
            for stage, (seconds, totals) in enumerate(self._cost.stage_totals(self._chosen)):
                done = busy[stage * self._cost.tensor]
                if seconds > 0:
                    self._stages[stage].add(done - self._counted[stage], seconds, totals)
                self._counted[stage] = done
        self._chosen, self._seconds = None, 0.0
        return self._stages
