"""A scenario of a simulation: a workload, and the replicas that it is played over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from corepipe.engine.batch.encoding import Encoding
from corepipe.neuron.step import AdapterKind
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.config import SchedulerConfig
from corepipe.scheduler.next_batch import Policy
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.source import DrafterMaker
from corepipe.workload.workload import Workload

Progress = Callable[[str, float], None]


def silent(_what: str, _done: float) -> None:
    """Reports no progress."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run of a workload over replicas: a timeline for each, which it moves on, and the limits and the
    policy of all.

    early_stop: ends the run when it is lost.  encoding: of a model that generates nothing (None: it does).
    max_batch_delay: seconds for which a replica waits for more.  drafters: see `WorkloadSource`.  kinds: see
    `NullRunner`.
    """

    limits: SchedulerConfig
    policy: Policy
    timelines: Sequence[Timeline]
    workload: Workload
    early_stop: EarlyStop | None = None
    encoding: Encoding | None = None
    max_batch_delay: float = 0.0
    drafters: DrafterMaker | None = None
    kinds: Mapping[int, AdapterKind] = field(default_factory=dict)

    @property
    def reports_events(self) -> bool:
        """Returns whether the events of requests must be reported in order while they happen."""
        return self.workload.chained or self.early_stop is not None
