"""One run of a workload in the loop that serves, with the schedulers and time lines that serve."""

from __future__ import annotations

from itertools import count

from corepipe.engine.loop.batch_delay import replica_of
from corepipe.engine.loop.loop import Loop, ReplicaRouter, load_margin
from corepipe.engine.loop.replica import Completed, InFlight, Replica
from corepipe.neuron.timing.clock import VirtualClock
from corepipe.scheduler.scheduler import Scheduler
from corepipe.simulation.null_runner import NullRunner
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.scenario import Progress, Scenario, silent
from corepipe.simulation.source import WorkloadSource

PROGRESS_REQUESTS = 100
"""The number of requests after which progress is reported."""


class LoopedSimulation:
    """Plays a workload once in the loop that serves; implements `loop.LoopListener`."""

    def __init__(self, scenario: Scenario) -> None:
        self._clock = VirtualClock()
        limits, timelines = scenario.limits, scenario.timelines
        runner, delay = NullRunner(scenario.encoding, scenario.kinds), scenario.max_batch_delay
        schedulers = [Scheduler(limits, scenario.policy, timeline.rounds) for timeline in timelines]
        parts = zip(count(), schedulers, timelines, strict=False)
        replicas = [replica_of(n, s, runner, t, paced=True, delay=delay) for n, s, t in parts]
        self._loop = Loop(
            replicas, self._clock, self, ReplicaRouter(schedulers, load_margin(limits.max_num_seqs))
        )
        self.record = SimulationRecord(limits, replicas, scenario.early_stop)
        self._source = WorkloadSource(
            scenario.workload,
            self._loop,
            self._clock,
            self.record,
            generates=scenario.encoding is None,
            drafters=scenario.drafters,
        )
        self._lost = False

    def run(self, progress: Progress = silent) -> SimulationRecord:
        """Plays all arrivals and runs until the last request has ended, or the run is lost."""
        shown = 0
        for _ in self._loop.turns(self._source):
            if self.record.sent >= shown:
                progress("simulating", self._source.share)
                shown = self.record.sent + PROGRESS_REQUESTS
        progress("simulating", 1.0)
        return self.record

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        """See `loop.LoopListener`."""
        self.record.submitted(replica, batch, self._clock.now())

    def completed(self, replica: Replica, batch: Completed, _behind: float | None) -> None:
        """See `loop.LoopListener`.  What comes after the batch with which the run is lost does not count."""
        if self._lost:
            return
        now = self._clock.now()
        for request in self.record.completed(replica, batch, now):
            self._source.ended(request, now)
        self._lost = self.record.lost
