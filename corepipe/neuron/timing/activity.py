"""Activity of the cores' engines, estimated while serving from one step in many.

To time each step Op by Op would cost as much as to schedule it.  Of the steps between two reads one is
chosen, with a chance in proportion to its time, and stands for the busy time of all of them: the reported
numbers grow as the exact sums do, and an engine is never busier than its core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from corepipe.neuron.chips.engines import Engines
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.step import StepShape


class Costs(Protocol):
    """The times of steps: `cost.CostModel`."""

    @property
    def stages(self) -> int: ...

    @property
    def tensor(self) -> int: ...

    def stage_totals(self, shape: StepShape) -> Sequence[tuple[float, Engines]]: ...


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
    """The activity of one replica.  The cores of a stage do the same: its first stands for all."""

    def __init__(self, cost: Costs) -> None:
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
