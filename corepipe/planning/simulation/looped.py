"""One run of a workload in the loop that serves, by the schedulers and time lines that serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from corepipe.neuron.clock import VirtualClock
from corepipe.neuron.timeline import Timeline
from corepipe.planning.simulation.fast_forward import fast_forward, fast_forward_together
from corepipe.planning.simulation.null_runner import NullRunner
from corepipe.planning.simulation.patience import Patience
from corepipe.planning.simulation.record import Record
from corepipe.planning.simulation.source import Guess, WorkloadSource, nobody
from corepipe.planning.workload import Workload
from corepipe.scheduler.policy import Policy
from corepipe.scheduler.scheduler import Scheduler, SchedulerConfig
from corepipe.serving.engine.delayed import replica_of
from corepipe.serving.engine.encoding import Encoding
from corepipe.serving.engine.loop import Loop
from corepipe.serving.engine.replica import Completed, InFlight, Replica
from corepipe.serving.engine.router import Router, load_margin

PROGRESS_REQUESTS = 100
"""Progress is told of so many requests at a time."""

Progress = Callable[[str, float], None]


def silent(_what: str, _done: float) -> None:
    """Progress that nobody wants to see."""


class LoopedSimulation:
    """One run of a workload over replicas: a timeline for each, and the limits and the policy of all.
    Implements `loop.Listener`.

    patience: ends the run when it is lost.  step_by_step: without running through repetitions; the same
    result, later.  encoding: of a model that generates nothing (None: it does).  max_batch_delay: seconds for
    which a replica waits for more.  guess: see `WorkloadSource`.
    """

    def __init__(  # noqa: PLR0913 -- what a run is made of
        self,
        limits: SchedulerConfig,
        policy: Policy,
        timelines: Sequence[Timeline],
        workload: Workload,
        patience: Patience | None = None,
        *,
        step_by_step: bool = False,
        encoding: Encoding | None = None,
        max_batch_delay: float = 0.0,
        guess: Guess = nobody,
    ) -> None:
        self._clock = VirtualClock()
        schedulers = [Scheduler(limits, policy, timeline.rounds) for timeline in timelines]
        runner, parts = NullRunner(encoding), zip(count(), schedulers, timelines, strict=False)
        replicas = [replica_of(n, s, runner, t, paced=True, delay=max_batch_delay) for n, s, t in parts]
        self._loop = Loop(replicas, self._clock, self, Router(schedulers, load_margin(limits.max_num_seqs)))
        self.record = Record(limits, replicas, patience)
        self._source = WorkloadSource(
            workload, self._loop, self._clock, self.record, generates=encoding is None, guess=guess
        )
        self._lost = False
        apart = len(replicas) == 1 or not (workload.chained or patience is not None)
        self._run_through = None if step_by_step else fast_forward if apart else fast_forward_together

    def run(self, progress: Progress = silent) -> Record:
        """Plays all arrivals and runs until the last request has ended, or the run is lost."""
        shown = 0
        for _ in self._loop.turns(self._source):
            if self.record.sent >= shown:
                progress("simulating", self._source.share)
                shown = self.record.sent + PROGRESS_REQUESTS
            self._leave_out_repetitions()
        progress("simulating", 1.0)
        return self.record

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        """See `loop.Listener`."""
        self.record.submitted(replica, batch, self._clock.now())

    def completed(self, replica: Replica, batch: Completed, _behind: float | None) -> None:
        """See `loop.Listener`.  What comes after the batch with which the run is lost does not count."""
        if self._lost:
            return
        now = self._clock.now()
        for request in self.record.completed(replica, batch, now):
            self._source.ended(request, now)
        self._lost = self.record.lost

    def _leave_out_repetitions(self) -> None:
        """Leaves out the steps in which nothing happens but one more token for everyone."""
        if self._run_through is not None and self._source.waits and not self._lost:
            self._run_through(self._loop, self._source.next_arrival(), self.record)
