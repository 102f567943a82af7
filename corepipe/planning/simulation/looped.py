"""One run of a workload in the loop that serves, by the schedulers and time lines that serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import inf

from corepipe.neuron.clock import VirtualClock
from corepipe.neuron.timeline import Timeline
from corepipe.planning.simulation.crowd_scheduler import CrowdScheduler
from corepipe.planning.simulation.fast_forward import fast_forward, fast_forward_together
from corepipe.planning.simulation.lazy_replica import CatchingUp, LazyReplica
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
        self._stirred: set[LazyReplica] = set()
        margin = load_margin(limits.max_num_seqs)
        lazy = limits.stages == 1 and encoding is None and not (max_batch_delay or step_by_step)
        replicas: list[Replica]
        router: Router
        if lazy:
            crowds = [CrowdScheduler(limits, policy, timeline.rounds) for timeline in timelines]
            parts = zip(count(), crowds, timelines, strict=False)
            waiting = [LazyReplica(n, s, NullRunner(), t, self._stirred) for n, s, t in parts]
            replicas, router = [*waiting], CatchingUp(waiting, margin)
        else:
            schedulers = [Scheduler(limits, policy, timeline.rounds) for timeline in timelines]
            runner, delay = NullRunner(encoding), max_batch_delay
            replicas = [
                replica_of(n, s, runner, t, paced=True, delay=delay)
                for n, s, t in zip(count(), schedulers, timelines, strict=False)
            ]
            router = Router(schedulers, margin)
        self._loop = Loop(replicas, self._clock, self, router)
        self.record = Record(limits, replicas, patience)
        self._source = WorkloadSource(
            workload, self._loop, self._clock, self.record, generates=encoding is None, guess=guess
        )
        self._lost = False
        apart = len(replicas) == 1 or not workload.chained
        self._apart = lazy and (len(replicas) == 1 or (apart and patience is None))
        together = fast_forward if apart else fast_forward_together
        self._run_through = None if lazy or step_by_step else together

    def run(self, progress: Progress = silent) -> Record:
        """Plays all arrivals and runs until the last request has ended, or the run is lost."""
        shown = 0
        for _ in self._loop.turns(self._source):
            if self.record.sent >= shown:
                progress("simulating", self._source.share)
                shown = self.record.sent + PROGRESS_REQUESTS
            if not self._lost:
                self._between_events()
        progress("simulating", 1.0)
        return self.record

    def _between_events(self) -> None:
        """Leaves out the steps in which nothing happens but one more token for everyone."""
        if self._run_through is not None and self._source.waits:
            self._run_through(self._loop, self._source.next_arrival(), self.record)
        if self._apart:
            self._go_on()
        for replica in self._stirred:
            if not self._apart:
                replica.run_ahead(self.record)
            self._loop.changed(replica)
        self._stirred.clear()

    def _go_on(self) -> None:
        """Lets every replica act by itself until the next request comes."""
        for replica in tuple(self._stirred):
            replica.go_on(self)
            self._loop.changed(replica)
        while (first := self._loop.next_due(self.quiet_until)) is not None:
            assert isinstance(first, LazyReplica)
            first.go_on(self)
            self._loop.changed(first)

    @property
    def quiet_until(self) -> float:
        """When the next request comes; nobody can be asked to do anything before."""
        return -inf if self._lost else self._source.next_arrival()

    def landed(self, replica: Replica, batch: Completed, now: float) -> None:
        """A batch is complete.  What comes after the one with which the run is lost does not count."""
        if self._lost:
            return
        for request in self.record.completed(replica, batch, now):
            self._source.ended(request, now)
        self._lost = self.record.lost

    def submitted(self, replica: Replica, batch: InFlight) -> None:
        """See `loop.Listener`."""
        self.record.submitted(replica, batch, self._clock.now())

    def completed(self, replica: Replica, batch: Completed, _behind: float | None) -> None:
        """See `loop.Listener`."""
        self.landed(replica, batch, self._clock.now())
