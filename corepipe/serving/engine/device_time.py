"""Where one replica's device stands in its own time."""

from __future__ import annotations

from corepipe.neuron.cost import StepShape
from corepipe.neuron.timeline import Timeline, Timing


class DeviceTime:
    """A replica's device timeline, and how far the scheduler has heard of it.

    `now` is the device time of the last thing that the scheduler has heard of: the latest result, and
    (where the device sets the pace) the latest arrival.  A batch is submitted to the device at `now`,
    however long the host took to compute what came before.  Under the host clock a request arrives at
    the device time of the latest result, so that one that comes while a batch runs waits for all of it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.now = 0.0

    def advance(self, to: float) -> None:
        """Something happened at `to`; time does not run backwards."""
        self.now = max(self.now, to)

    def submit(self, shape: StepShape) -> Timing:
        """Places a batch on the timeline."""
        return self.timeline.submit(shape, self.now)
