"""What a simulation writes down: a row for each step and for each request, nothing summed up yet."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from corepipe.neuron.step import StepShape
from corepipe.neuron.timeline import Repeated, Timing
from corepipe.planning.simulation.crowd import Together
from corepipe.planning.simulation.patience import Patience
from corepipe.planning.simulation.simulated import SimulatedRequest
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.serving.engine.replica import Completed, InFlight, Replica

Floats = npt.NDArray[np.float64]

STEP_COLUMNS = (
    "starts_at", "ready_at", "rows", "sequences", "kv_tokens", "attended", "logit_rows",
    "blocks_held", "running", "waiting", "longest", "each",
)  # fmt: skip
"""Of a step: when it runs on the device, its shape, and how things stand once it is scheduled."""

REQUEST_COLUMNS = (
    "arrival", "scheduled_at", "first_at", "last_at", "prompt_tokens", "output_tokens", "cached_tokens",
    "preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one replica, in order: an array for each of STEP_COLUMNS."""

    columns: dict[str, Floats]

    def __getitem__(self, name: str) -> Floats:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns["ready_at"])


class Record:
    """All that happened.  Gaps between tokens are kept as (seconds, how many tokens).

    patience: whom to tell of first and last tokens."""

    def __init__(
        self, limits: SchedulerConfig, replicas: Sequence[Replica], patience: Patience | None = None
    ) -> None:
        self.limits = limits
        self.replicas = replicas
        self.rejected = {"overloaded": 0, "invalid": 0}
        self.sent = 0
        self._patience = patience
        self._unscheduled = [0] * len(replicas)
        self._steps = [array("d") for _ in replicas]
        self._requests = array("d")
        self._gaps = array("d")

    @property
    def lost(self) -> bool:
        """Whether patience is at its end."""
        return self._patience is not None and self._patience.lost

    def admitted(self, replica: Replica) -> None:
        """A request waits in a replica's queue."""
        self.sent += 1
        self._unscheduled[replica.number] += 1

    def submitted(self, replica: Replica, batch: InFlight, now: float) -> None:
        """A batch was scheduled at `now`."""
        self.step(replica, batch.step.shape, batch.timing, replica.scheduler.blocks_held)
        if self._unscheduled[replica.number]:
            for chunk in batch.step.batch.chunks:
                request = _simulated(chunk.request)
                if request.scheduled_at < 0:
                    request.scheduled_at = now
                    self._unscheduled[replica.number] -= 1

    def step(self, replica: Replica, shape: StepShape, timing: Timing, blocks_held: int) -> None:
        """A step is under way, and so many KV blocks are held."""
        scheduler = replica.scheduler
        self._steps[replica.number].extend(
            (
                timing.starts_at, timing.ready_at, shape.rows, shape.sequences, shape.kv_tokens,
                shape.attended, shape.logit_rows, blocks_held, scheduler.running, scheduler.waiting,
                shape.longest, shape.each,
            )
        )  # fmt: skip

    def steps_of(
        self,
        replica: Replica,
        size: int,
        kv_tokens: npt.NDArray[np.int64],
        times: Repeated,
        held: npt.NDArray[np.int64],
    ) -> None:
        """Decode steps of `size` sequences, one after the other, and the KV blocks held with each."""
        scheduler = replica.scheduler
        rows = np.empty((len(kv_tokens), len(STEP_COLUMNS)))
        rows[:, 0], rows[:, 1] = times.starts_at, times.ready_at
        rows[:, 2] = rows[:, 3] = rows[:, 6] = size
        rows[:, 4] = rows[:, 5] = kv_tokens
        rows[:, 7], rows[:, 8], rows[:, 9] = held, scheduler.running, scheduler.waiting
        rows[:, 10], rows[:, 11] = 0, 1  # they grow, and nobody guesses
        self._steps[replica.number].frombytes(rows.tobytes())

    def tokens(self, requests: Sequence[Request], now: float) -> None:
        """Each of these has got a token."""
        gaps: dict[float, int] = {}  # most are alike, and a long run has many
        for request in requests:
            assert isinstance(request, SimulatedRequest)
            if request.first_at < 0:
                request.first_at = now
                if self._patience is not None:
                    self._patience.started(request)
            else:
                gap = now - request.last_at
                gaps[gap] = gaps.get(gap, 0) + 1
            request.last_at = now
        for alike in gaps.items():
            self._gaps.extend(alike)

    def gap(self, seconds: float, tokens: int) -> None:
        """So many tokens came so long after the ones before."""
        self._gaps.extend((seconds, tokens))

    def gaps_between(self, moments: Floats, tokens: int) -> None:
        """So many tokens came at each of these moments but the first, after those of the one before."""
        gaps = np.diff(moments)
        self._gaps.frombytes(np.stack([gaps, np.full(len(gaps), float(tokens))], axis=1).tobytes())

    def together(self, batch: Together, now: float) -> None:
        """Each of the crowd in this batch has got a token."""
        for request in batch.fresh:
            self._gaps.extend((now - request.last_at, 1))
        if others := batch.members - len(batch.fresh):
            self._gaps.extend((now - batch.crowd.landed_at, others))
        batch.crowd.landed_at = now

    def repeated(self, requests: Sequence[Request], now: float) -> None:
        """The last token that each of these has got, all told, came at `now`."""
        for request in requests:
            _simulated(request).last_at = now

    def completed(self, batch: Completed, now: float) -> list[SimulatedRequest]:
        """A batch is complete at `now`; the requests that ended with it."""
        events, step = batch.events, batch.result.step.batch
        told = [e.request for e in events if e.token is not None or e.finish_reason is not None]
        if isinstance(step, Together):
            self.together(step, now)
            own = {chunk.request for chunk in step.chunks}
            told = [request for request in told if request in own]
        self.tokens(told, now)
        ended = [_simulated(request) for request in batch.ended]
        for request in ended:
            request.last_at = now
            self._end(request)
        return ended

    def refused(self, kind: str) -> None:
        """A request was not taken on."""
        self.sent += 1
        self.rejected[kind] += 1

    @property
    def steps(self) -> list[Steps]:
        """Of each replica."""
        return [Steps(_columns(rows, STEP_COLUMNS)) for rows in self._steps]

    @property
    def requests(self) -> dict[str, Floats]:
        """Of those that were answered, in order of their end: an array for each of REQUEST_COLUMNS."""
        return _columns(self._requests, REQUEST_COLUMNS)

    @property
    def gaps(self) -> tuple[Floats, Floats]:
        """Times between the tokens of a request, ascending and without repetition, and how often each is."""
        pairs = _columns(self._gaps, ("seconds", "tokens"))
        seconds, index = np.unique(pairs["seconds"], return_inverse=True)
        return seconds, np.bincount(index, pairs["tokens"], len(seconds)).astype(np.float64)

    def _end(self, request: SimulatedRequest) -> None:
        if self._patience is not None:
            self._patience.ended(request)
        self._requests.extend(
            (
                request.arrival, request.scheduled_at, request.first_at, request.last_at,
                len(request.prompt), request.num_results, request.num_cached, request.num_preemptions,
            )
        )  # fmt: skip


def _simulated(request: Request) -> SimulatedRequest:
    assert isinstance(request, SimulatedRequest)
    return request


def _columns(rows: array[float], names: Sequence[str]) -> dict[str, Floats]:
    table = np.frombuffer(rows, np.float64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
