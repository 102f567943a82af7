"""The serving side of one replica: what its requests ask for, what their owners are told, what it counts."""

from __future__ import annotations

from corepipe.scheduler.request import FinishReason, Request
from corepipe.serving.engine.deployment import Replica
from corepipe.serving.engine.engine import Engine, Flight, Landing
from corepipe.serving.engine.lanes import Lane
from corepipe.serving.engine.reporter import Reporter
from corepipe.serving.engine.runner import OnStart, Runner
from corepipe.serving.engine.tally import Tally
from corepipe.serving.messages import Output, Sampling, Stats


class Desk:
    """Replica number `number`, with its lane under the driver; `on_start`: see `Runner`."""

    def __init__(self, replica: Replica, number: int, on_start: OnStart) -> None:
        self._runner = Runner(replica.executor, on_start)
        engine = Engine(replica.scheduler, replica.policy, self._runner, replica.timeline)
        self.lane = Lane(number, engine, replica.scheduler.most_in_flight)
        self._scheduler = engine.scheduler
        self._reporter = Reporter()
        self._tally = Tally(replica.timeline)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._scheduler

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Of the requests that have not ended, in order of arrival."""
        return self._scheduler.request_ids

    def add(self, request: Request, params: Sampling, seed: int) -> None:
        """Queues a request.  Raises QueueFull."""
        self._scheduler.add(request)
        self._runner.add(request, params, seed)
        self._reporter.add(request, self.lane.engine.device.now)

    def abort(self, request_id: str) -> Output | None:
        """The last news of a request that is given up; None where it is unknown or has ended."""
        request = self._scheduler.abort(request_id)
        if request is None:
            return None
        self._runner.remove(request_id)
        return self._reporter.end(request, FinishReason.ABORT)

    def launched(self, flight: Flight) -> None:
        """A batch was submitted."""
        self._reporter.schedule(flight.step.batch, flight.timing.submitted_at)

    def landed(self, landing: Landing) -> None:
        """A batch is complete; `outputs` tells of it, when the next one is under way."""
        self._tally.count(landing)
        for event in landing.events:
            if event.finish_reason is not None:
                self._runner.remove(event.request.id)
        for request in landing.overflowed:
            self._runner.remove(request.id)

    def outputs(self, landing: Landing) -> list[Output]:
        """What the requests' owners are told of a batch that has landed."""
        return self._reporter.outputs(landing)

    def stats(self) -> Stats:
        """Gauges and counters of this replica."""
        return self._tally.stats(self.lane, self._scheduler)
