"""A driver under a clock that only the test moves: its actions and their times, exactly."""

from __future__ import annotations

from collections.abc import Callable

from corepipe.engine.loop.deployment import Deployment
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Submit
from corepipe.neuron.timing.clock import Clock, HostClock, PacedClock
from tests.engine.engine_support import ManualTime


class Clocked:
    """A deployment at the device's pace, or (not `paced`) at that of a host that computes in no time. told:
    the last output of each request, and its time."""

    def __init__(self, deployment: Callable[[Clock], Deployment], *, paced: bool = True) -> None:
        self.time = ManualTime()
        clock = PacedClock(1.0, self.time.read, self.time.sleep) if paced else HostClock(self.time.read)
        self.driver = Driver(deployment(clock))
        self.told: dict[str, tuple[float, Output]] = {}

    def submit(self, at: float, *submits: Submit) -> None:
        """Runs all turns before `at`, when these commands come."""
        self.until(at)
        for one in submits:
            self.driver.handle(one)
        self.driver.submit()

    def until(self, at: float) -> None:
        """Runs all turns before `at`."""
        while (event := self.driver.next_event()) < at or self.driver.patience() == 0.0:
            self.time.now = max(self.time.now, min(event, at))
            self._turn()
        self.time.now = max(self.time.now, at)

    def _turn(self) -> None:
        self.driver.complete()
        self.driver.submit()
        for output in self.driver.outputs():
            self.told[output.id] = (self.time.now, output)
