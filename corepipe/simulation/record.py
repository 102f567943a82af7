"""The record of a simulation: a row for each step and for each request, nothing summed up yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from corepipe.engine.loop.replica import Completed, InFlight, Replica
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.request import Drafted, Request
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.simulation.columns import COUNT, LARGE, SECONDS, SMALL, Columns, Floats, RecordTable
from corepipe.simulation.early_stop import EarlyStop
from corepipe.simulation.simulated_request import SimulatedRequest

STEP_COLUMNS = {
    "starts_at": SECONDS, "ready_at": SECONDS, "rows": COUNT, "sequences": COUNT, "kv_tokens": LARGE,
    "attended": LARGE, "logit_rows": COUNT, "blocks_held": COUNT, "running": COUNT, "waiting": COUNT,
    "longest": COUNT, "each": SMALL,
}  # fmt: skip
"""The columns of a step: when it runs on the device, its shape, and the state of the replica once it is
scheduled."""

REQUEST_COLUMNS = {
    "arrival": SECONDS, "scheduled_at": SECONDS, "first_at": SECONDS, "last_at": SECONDS,
    "prompt_tokens": COUNT, "output_tokens": COUNT, "cached_tokens": COUNT, "preemptions": COUNT,
}  # fmt: skip
"""The columns of `SimulationRecord.requests`; the number of the replica stands beside them."""

GAP_COLUMNS = {"seconds": SECONDS, "tokens": COUNT}


class PlayedScheduler(Protocol):
    """The counts of a replica's scheduler that reports read; see `Scheduler`."""

    @property
    def preemptions(self) -> int: ...

    @property
    def prefix_queries(self) -> int: ...

    @property
    def prefix_hits(self) -> int: ...


class PlayedReplica(Protocol):
    """A replica that a workload was played over."""

    @property
    def timeline(self) -> Timeline: ...

    @property
    def scheduler(self) -> PlayedScheduler: ...


class SimulationRecord:
    """The rows of all steps and requests.  Gaps between tokens are kept as (seconds, how many tokens).

    early_stop: is notified of first and last tokens."""

    def __init__(
        self, limits: SchedulerConfig, replicas: Sequence[PlayedReplica], early_stop: EarlyStop | None = None
    ) -> None:
        self.limits = limits
        self.replicas = replicas
        self.rejected = {"overloaded": 0, "invalid": 0}
        self.sent = 0
        self._early_stop = early_stop
        self._unscheduled = [0] * len(replicas)
        self._steps = [Columns(STEP_COLUMNS) for _ in replicas]
        self._requests = Columns({**REQUEST_COLUMNS, "replica": COUNT})
        self._gaps = Columns(GAP_COLUMNS)

    @property
    def lost(self) -> bool:
        """Returns whether the run is lost: so many requests are late that it may end early."""
        return self._early_stop is not None and self._early_stop.lost

    def admitted(self, number: int) -> None:
        """Notes that a request waits in the queue of the replica with this number."""
        self.sent += 1
        self._unscheduled[number] += 1

    def submitted(self, replica: Replica, batch: InFlight, now: float) -> None:
        """Writes the row of a batch that was scheduled at `now`."""
        scheduler, timing = replica.scheduler, batch.timing
        (rows, logit_rows, *_), sequences, kv_tokens, attended, longest, each, *_ = batch.step.shape
        self._steps[replica.number].append(
            timing.starts_at, timing.ready_at, rows, sequences, kv_tokens, attended, logit_rows,
            scheduler.blocks_held, scheduler.running, scheduler.waiting, longest, each,
        )  # fmt: skip
        if self._unscheduled[replica.number]:
            for chunk in batch.step.batch.chunks:
                request = _simulated(chunk.request)
                if request.scheduled_at < 0:
                    request.scheduled_at = now
                    self._unscheduled[replica.number] -= 1

    def _tokens(self, requests: Sequence[Request], now: float) -> None:
        """Notes that each of these requests got a token at `now`."""
        gaps: dict[float, int] = {}  # most are alike, and a long run has many
        for request in requests:
            assert isinstance(request, SimulatedRequest)
            if request.first_at < 0:
                request.first_at = now
                if self._early_stop is not None:
                    self._early_stop.started(request)
            else:
                gap = now - request.last_at
                gaps[gap] = gaps.get(gap, 0) + 1
            request.last_at = now
        self._gaps.extend(gaps.keys(), gaps.values())

    def completed(self, replica: Replica, batch: Completed, now: float) -> list[SimulatedRequest]:
        """Notes that a batch is complete at `now`; returns the requests that ended with it."""
        with_results = [e.request for e in batch.events if e.token is not None or e.finish_reason is not None]
        self._tokens(with_results, now)
        ended = [_simulated(request) for request in batch.ended]
        for request in ended:
            request.last_at = now
            self._end(replica, request)
        return ended

    def refused(self, kind: str) -> None:
        """Counts a request that was refused."""
        self.sent += 1
        self.rejected[kind] += 1

    @property
    def drafted(self) -> list[Drafted]:
        """Returns the counts of drafts of each replica that could have had any."""
        return [replica.scheduler.drafted for replica in self.replicas if isinstance(replica, Replica)]

    @property
    def steps(self) -> Sequence[RecordTable]:
        """Returns the steps of each replica, in order: STEP_COLUMNS."""
        return self._steps

    @property
    def nbytes(self) -> int:
        """Memory that it takes, which grows with steps, requests and gaps: no more than 64 bytes for each."""
        return sum(table.nbytes for table in (*self._steps, self._requests, self._gaps))

    @property
    def requests(self) -> dict[str, Floats]:
        """Returns the answered requests, in order of their end: an array for each of REQUEST_COLUMNS."""
        return in_order(self._requests.columns)

    @property
    def gaps(self) -> tuple[Floats, Floats]:
        """Times between the tokens of a request, ascending and without repetition, and how often each is."""
        return together(self._gaps["seconds"], self._gaps["tokens"])

    def _end(self, replica: Replica, request: SimulatedRequest) -> None:
        if self._early_stop is not None:
            self._early_stop.ended(request)
        self._requests.append(
            request.arrival, request.scheduled_at, request.first_at, request.last_at,
            len(request.prompt), request.num_results, request.num_cached, request.num_preemptions,
            replica.number,
        )  # fmt: skip


def in_order(requests: dict[str, Floats]) -> dict[str, Floats]:
    """Those that ended, in order of their end, without the numbers of their replicas."""
    order = np.lexsort((requests.pop("replica"), requests["last_at"]))
    return {name: column[order] for name, column in requests.items()}


def together(gaps: Floats, tokens: Floats) -> tuple[Floats, Floats]:
    """Gaps, ascending and without repetition, and how many tokens came after each."""
    seconds, index = np.unique(gaps, return_inverse=True)
    return seconds, np.bincount(index, tokens, len(seconds)).astype(np.float64)


def _simulated(request: Request) -> SimulatedRequest:
    assert isinstance(request, SimulatedRequest)
    return request
