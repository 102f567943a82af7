"""When the emulated device would have had each result of one replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corepipe.neuron.cost import StepShape
from corepipe.neuron.timeline import Timeline, Timing
from corepipe.scheduler.request import Request, TokenEvent
from corepipe.serving.messages import DeviceTimes

MILLISECONDS = 1e3


@dataclass(slots=True)
class _Times:
    arrival: float
    first: float | None = None
    last: float = 0.0


class DeviceTime:
    """A replica's device timeline, and where on it each request stands.

    `now` is the device time of the last thing that the scheduler has heard of: the latest result, and
    (where the device sets the pace) the latest arrival.  A batch is submitted to the device at `now`,
    however long the host took to compute what came before.  Under the host clock a request arrives at
    the device time of the latest result, so that one that comes while a batch runs waits for all of it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._requests: dict[str, _Times] = {}
        self.now = 0.0

    def advance(self, to: float) -> None:
        """Something happened at `to`; time does not run backwards."""
        self.now = max(self.now, to)

    def arrive(self, request_id: str) -> None:
        self._requests[request_id] = _Times(self.now)

    def submit(self, shape: StepShape) -> Timing:
        """Places a batch on the timeline."""
        return self._timeline.submit(shape, self.now)

    def land(self, timing: Timing, events: Sequence[TokenEvent]) -> None:
        """A batch is complete, with these tokens."""
        self.advance(timing.ready_at)
        for event in events:
            if event.token is not None:
                times = self._requests[event.request.id]
                times.last = self.now
                if times.first is None:
                    times.first = self.now

    def finish(self, request: Request) -> DeviceTimes | None:
        """The request's times; None where it has no token."""
        times = self._requests.pop(request.id)
        if times.first is None:
            return None
        gaps = request.num_generated - 1
        return DeviceTimes(
            time_to_first_token_ms=(times.first - times.arrival) * MILLISECONDS,
            time_per_output_token_ms=(times.last - times.first) / gaps * MILLISECONDS if gaps else None,
            total_ms=(times.last - times.arrival) * MILLISECONDS,
        )
