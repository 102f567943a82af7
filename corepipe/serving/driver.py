"""Who owns time: always takes the earliest event over all replicas, under whichever clock.

Under the host clock a batch is due as soon as it is submitted, and taking it means waiting for the
executor: the order of submission decides.  Where the device sets the pace, a batch is due when the device
would have it, and the first core says when it takes the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from corepipe.neuron.clock import VirtualClock
from corepipe.scheduler.request import FinishReason, Request
from corepipe.scheduler.scheduler import QueueFull
from corepipe.serving.deployment import Deployment
from corepipe.serving.engine import Engine, Flight, Landing
from corepipe.serving.messages import Abort, Output, Stats, Submit
from corepipe.serving.requests import to_request
from corepipe.serving.router import choose_replica
from corepipe.serving.sampling import derive_seed

LEAD_SECONDS = 2e-4
"""How long before an event a wait for commands ends, so that the clock can end it on time."""


@dataclass(slots=True, eq=False)
class Lane:
    """One replica under the driver: its engine and its batches in flight, oldest first, each with its time.

    accepts_at: when the first core takes another batch.  stirred: something has happened since the
    scheduler last had nothing to give.
    """

    engine: Engine
    most_flights: int
    flights: deque[tuple[float, Flight]] = field(default_factory=deque)
    accepts_at: float = 0.0
    stirred: bool = False
    late_steps: int = 0

    @property
    def may_submit(self) -> bool:
        """Whether another batch can be tried once the first core accepts it."""
        return self.stirred and len(self.flights) < self.most_flights

    def next_event(self) -> float:
        """When a batch is due or another can be submitted; infinity: not before a command comes."""
        due = self.flights[0][0] if self.flights else inf
        return min(due, self.accepts_at) if self.may_submit else due


class Driver:
    """Runs the engines of a deployment.

    A turn is: `complete` what is due, `handle` what has come in, `submit`, and, while the batches compute,
    tell the `outputs`.  `patience` says how long there is nothing else to do.
    """

    def __init__(self, deployment: Deployment) -> None:
        first = deployment.replicas[0].scheduler
        self._deployment = deployment
        self._clock = deployment.clock
        self._time_scale = 0.0 if isinstance(self._clock, VirtualClock) else deployment.time_scale
        self._max_model_len = first.max_model_len
        self._margin = max(2, first.max_num_seqs // 4)
        self._lanes = [
            Lane(Engine(replica), replica.scheduler.micro_batches) for replica in deployment.replicas
        ]
        self._accepted = 0
        self._landed: deque[tuple[Lane, Landing, float]] = deque()
        self._outputs: list[Output] = []

    @property
    def busy(self) -> bool:
        """Whether a request has not ended, a batch is in flight, or outputs wait to be told."""
        return bool(self._landed or self._outputs) or any(
            lane.flights or lane.engine.unfinished for lane in self._lanes
        )

    def next_event(self) -> float:
        """When the next turn has anything to do, on the clock; infinity: not before a command comes."""
        return min(lane.next_event() for lane in self._lanes)

    def patience(self) -> float | None:
        """Host seconds to wait for commands before the next turn; None: as long as it takes."""
        if self._landed or self._outputs:
            return 0.0
        event = self.next_event()
        return None if event == inf else max(0.0, self._host_seconds_until(event) - LEAD_SECONDS)

    def turn(self) -> list[Output]:
        """A whole turn, for those who wait for no commands: the next event, however far off it is."""
        self.complete(within=inf)
        self.submit()
        return self.outputs()

    def complete(self, within: float = LEAD_SECONDS) -> None:
        """Takes the next event, if it is not more than `within` host seconds off.

        Waits for the executor's result, and then until the device would have it.
        """
        event = self.next_event()
        if event == inf or self._host_seconds_until(event) > within:
            return
        lane = min(self._lanes, key=_due)
        if _due(lane) == event:
            self._land(lane)
        elif self._clock.now() < event:
            self._clock.wait_until(event)

    def submit(self) -> None:
        """Starts a batch wherever a replica accepts one."""
        now = self._clock.now()
        for lane in self._lanes:
            while lane.may_submit and lane.accepts_at <= now:
                self._launch(lane, now)

    def outputs(self) -> list[Output]:
        """The news since the last call."""
        self._tell()
        news, self._outputs = self._outputs, []
        return news

    def handle(self, command: Submit | Abort) -> None:
        """Takes a request on, refuses it, or gives requests up; the news of it comes with `outputs`."""
        if isinstance(command, Submit):
            self._admit(command)
        else:
            self._abort(command.ids)

    def abort_all(self) -> None:
        """Gives every request up."""
        self._abort([request_id for lane in self._lanes for request_id in lane.engine.request_ids])

    def stats(self) -> list[Stats]:
        """One for each replica; what counts since the last call starts anew."""
        return [lane.engine.stats(i, lane.late_steps) for i, lane in enumerate(self._lanes)]

    def close(self) -> None:
        """Frees the deployment; batches in flight are dropped."""
        self._deployment.close()

    def _host_seconds_until(self, event: float) -> float:
        return max(0.0, event - self._clock.now()) * self._time_scale

    def _launch(self, lane: Lane, now: float) -> None:
        flight = lane.engine.submit(now)
        lane.stirred = flight is not None
        if flight is not None:
            paced = self._deployment.paced_by_device
            lane.accepts_at = flight.timing.accepts_at if paced else now
            lane.flights.append((flight.timing.ready_at if paced else now, flight))

    def _land(self, lane: Lane) -> None:
        due, flight = lane.flights.popleft()
        landing = lane.engine.complete(flight)
        lane.late_steps += self._deployment.paced_by_device and self._clock.now() > due
        self._clock.wait_until(due)
        lane.stirred = True
        self._landed.append((lane, landing, self._clock.now()))

    def _tell(self) -> None:
        while self._landed:
            lane, landing, now = self._landed.popleft()
            self._outputs += lane.engine.outputs(landing, now)

    def _admit(self, submit: Submit) -> None:
        now = self._clock.now()
        try:
            if any(submit.id in lane.engine for lane in self._lanes):
                raise ValueError(f"request {submit.id} is already here")
            request = to_request(submit, now, self._deployment.vocab_size, self._max_model_len)
            lane = self._route(request)
            self._stir(lane, now)
            lane.engine.add(request, submit.sampling, self._seed(submit))
            self._accepted += 1
        except QueueFull as error:
            self._refuse(submit.id, str(error), "overloaded")
        except ValueError as error:
            self._refuse(submit.id, str(error), "invalid")

    def _refuse(self, request_id: str, error: str, kind: str) -> None:
        ended = FinishReason.ERROR.value
        self._outputs.append(Output(request_id, finish_reason=ended, error=error, error_kind=kind))

    def _abort(self, ids: Iterable[str]) -> None:
        self._tell()  # news of a step that has ended come before the end
        now = self._clock.now()
        for request_id in ids:
            for lane in self._lanes:
                if (ended := lane.engine.abort(request_id)) is not None:
                    self._outputs.append(ended)
                    self._stir(lane, now)

    def _stir(self, lane: Lane, now: float) -> None:
        lane.stirred = True
        if self._deployment.paced_by_device:
            lane.engine.device.advance(now)

    def _route(self, request: Request) -> Lane:
        if len(self._lanes) == 1:
            return self._lanes[0]
        return self._lanes[choose_replica([lane.engine.view(request) for lane in self._lanes], self._margin)]

    def _seed(self, submit: Submit) -> int:
        own = submit.sampling.seed
        return derive_seed(self._deployment.seed, self._accepted) if own is None else own


def _due(lane: Lane) -> float:
    return lane.flights[0][0] if lane.flights else inf
