"""Messages in, outputs out: runs the replicas of a deployment for those who submit requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from corepipe.neuron.clock import VirtualClock
from corepipe.scheduler.request import FinishReason, Request
from corepipe.scheduler.scheduler import QueueFull, SchedulerConfig
from corepipe.serving.engine.deployment import Deployment
from corepipe.serving.engine.desk import Desk
from corepipe.serving.engine.engine import Landing
from corepipe.serving.engine.lanes import Lanes
from corepipe.serving.engine.requests import to_request
from corepipe.serving.engine.runner import OnStart
from corepipe.serving.engine.sampling import derive_seed
from corepipe.serving.messages import Abort, Output, Started, Stats, Submit

LEAD_SECONDS = 2e-4
"""How long before an event a wait for commands ends, so that the clock can end it on time."""


def router_margin(limits: SchedulerConfig) -> int:
    """How many more requests than the least loaded replica one may have, to be given another."""
    return max(2, limits.max_num_seqs // 4)


def _nothing(_started: list[Started]) -> None:
    """For those whose requests go down with the engine."""


class Driver:
    """Runs the engines of a deployment.

    A turn is: `complete` what is due, `handle` what has come in, `submit`, and, while the batches compute,
    tell the `outputs`.  `patience` says how long there is nothing else to do.  `on_start`: see `Runner`.
    """

    def __init__(self, deployment: Deployment, on_start: OnStart = _nothing) -> None:
        first = deployment.replicas[0].scheduler
        self._deployment = deployment
        self._clock = deployment.clock
        self._time_scale = 0.0 if isinstance(self._clock, VirtualClock) else deployment.time_scale
        self._max_model_len = first.max_model_len
        self._desks = [Desk(replica, number, on_start) for number, replica in enumerate(deployment.replicas)]
        self._lanes = Lanes(
            [desk.lane for desk in self._desks],
            self._clock,
            paced=deployment.paced_by_device,
            margin=router_margin(first),
        )
        self._accepted = 0
        self._moment: float | None = None
        self._landed: deque[tuple[Desk, Landing]] = deque()
        self._outputs: list[Output] = []

    @property
    def busy(self) -> bool:
        """Whether a request has not ended, a batch is in flight, or outputs wait to be told."""
        return bool(self._landed or self._outputs) or any(
            desk.lane.flights or desk.request_ids for desk in self._desks
        )

    def next_event(self) -> float:
        """When the next turn has anything to do, on the clock; infinity: not before a command comes."""
        return self._lanes.next_event()

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

        Where the device sets the pace, what lands at the same time is one event: no command comes between.
        """
        event = self.next_event()
        if event == inf or self._host_seconds_until(event) > within:
            return
        self._take()
        while self._deployment.paced_by_device and self._lanes.due() <= event:
            self._take()

    def _take(self) -> None:
        completed = self._lanes.complete()
        if completed is not None:
            lane, landing = completed
            desk = self._desks[lane.number]
            desk.landed(landing)
            self._landed.append((desk, landing))

    def submit(self) -> None:
        """Starts a batch wherever a replica accepts one."""
        self._moment = None
        for lane, flight in self._lanes.submit():
            self._desks[lane.number].launched(flight)

    def outputs(self) -> list[Output]:
        """The news since the last call."""
        self._tell()
        news, self._outputs = self._outputs, []
        return news

    def handle(self, command: Submit | Abort) -> None:
        """Takes a request on, refuses it, or gives requests up; the news of it comes with `outputs`.

        Commands between two calls of `submit` come at the same moment of the device's time.
        """
        if isinstance(command, Submit):
            self._admit(command)
        else:
            self._abort(command.ids)

    def abort_all(self) -> None:
        """Gives every request up."""
        self._abort([request_id for desk in self._desks for request_id in desk.request_ids])

    def stats(self) -> list[Stats]:
        """One for each replica; what counts since the last call starts anew."""
        return [desk.stats() for desk in self._desks]

    def close(self) -> None:
        """Frees the deployment; batches in flight are dropped."""
        self._deployment.close()

    def _host_seconds_until(self, event: float) -> float:
        return max(0.0, event - self._clock.now()) * self._time_scale

    def _tell(self) -> None:
        while self._landed:
            desk, landing = self._landed.popleft()
            self._outputs += desk.outputs(landing)

    def _admit(self, submit: Submit) -> None:
        try:
            if any(submit.id in desk for desk in self._desks):
                raise ValueError(f"request {submit.id} is already here")
            self._add(
                to_request(submit, self._now(), self._deployment.vocab_size, self._max_model_len), submit
            )
        except QueueFull as error:
            self._refuse(submit.id, str(error), "overloaded")
        except ValueError as error:
            self._refuse(submit.id, str(error), "invalid")

    def _now(self) -> float:
        """When the commands come that are being handled; what could start before has been started."""
        if self._moment is None:
            if self._deployment.paced_by_device:
                self.submit()
            self._moment = self._lanes.moment()
        return self._moment

    def _add(self, request: Request, submit: Submit) -> None:
        lane = self._lanes.route(request)
        self._lanes.stir(lane, request.arrival)
        self._desks[lane.number].add(request, submit.sampling, self._seed(submit))
        self._accepted += 1

    def _refuse(self, request_id: str, error: str, kind: str) -> None:
        ended = FinishReason.ERROR.value
        self._outputs.append(Output(request_id, finish_reason=ended, error=error, error_kind=kind))

    def _abort(self, ids: Iterable[str]) -> None:
        self._tell()  # news of a step that has ended come before the end
        now = self._now()
        for request_id in ids:
            for desk in self._desks:
                if (ended := desk.abort(request_id)) is not None:
                    self._outputs.append(ended)
                    self._lanes.stir(desk.lane, now)

    def _seed(self, submit: Submit) -> int:
        own = submit.sampling.seed
        return derive_seed(self._deployment.seed, self._accepted) if own is None else own
