"""The driver under paced, virtual and host time, and the device times that it reports."""

from __future__ import annotations

from typing import Any

import pytest

from corepipe.engine.loop.driver import Driver
from corepipe.engine.loop.loop import LEAD_SECONDS
from corepipe.neuron.inputs import StepOutput
from corepipe.neuron.timing.clock import HostClock, PacedClock, VirtualClock
from tests.engine.engine_support import VOCAB, FlatCost, deployment, run, submit
from tests.null_executor import NullExecutor


class ManualTime:
    """Time that passes only during sleeps and work."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)


class SlowExecutor(NullExecutor):
    """A host that takes `seconds` for each batch."""

    def __init__(self, time: ManualTime, seconds: float) -> None:
        super().__init__(VOCAB)
        self._time = time
        self._seconds = seconds

    def wait(self, ticket: int) -> StepOutput:
        self._time.sleep(self._seconds)
        return super().wait(ticket)


def test_patience() -> None:
    time = ManualTime()
    driver = Driver(deployment(clock=PacedClock(1.0, time.read, time.sleep)))
    assert driver.patience() is None
    driver.handle(submit("a"))
    assert driver.patience() == 0.0
    driver.submit()
    assert driver.patience() == pytest.approx(0.01 - LEAD_SECONDS)
    time.now = 0.01
    assert driver.patience() == 0.0
    driver.complete()
    driver.submit()
    assert driver.patience() == 0.0
    assert driver.outputs()


def test_the_host_never_waits_while_it_has_work() -> None:
    driver = Driver(deployment(clock=HostClock()))
    driver.handle(submit("a", max_tokens=3))
    while driver.busy:
        assert driver.patience() == 0.0
        driver.turn()
    assert driver.patience() is None


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_paced_results_come_when_the_device_has_them(scale: float) -> None:
    time = ManualTime()
    driver = Driver(deployment(clock=PacedClock(scale, time.read, time.sleep)))
    driver.handle(submit("a", max_tokens=5))
    told = []
    while driver.busy:
        told += [time.now / scale for _ in driver.turn()]
    assert told == pytest.approx([0.01 * i for i in range(1, 6)], abs=1e-4)
    assert all(at >= 0.01 * i - 1e-12 for i, at in enumerate(told, 1))
    assert driver.stats()[0].late_steps == 0


def test_a_host_that_cannot_keep_up_is_counted_as_late() -> None:
    time = ManualTime()
    clock = PacedClock(1.0, time.read, time.sleep)
    driver = Driver(deployment(clock=clock, executor=lambda: SlowExecutor(time, 0.03)))
    driver.handle(submit("a", max_tokens=5))
    run(driver)
    assert driver.stats()[0].late_steps == 5
    assert time.now >= 0.15


def test_arrivals_can_be_played_in_virtual_time() -> None:
    clock = VirtualClock()
    driver = Driver(deployment(clock=clock))
    ends = []
    for number, arrival in enumerate([0.0, 0.005, 0.1]):
        while driver.next_event() <= arrival:
            ends += [(o.id, clock.now()) for o in driver.turn() if o.finish_reason]
        clock.wait_until(arrival)
        driver.handle(submit(f"r{number}", max_tokens=2))
        driver.submit()
    while driver.busy:
        ends += [(o.id, clock.now()) for o in driver.turn() if o.finish_reason]
    assert [name for name, _ in ends] == ["r0", "r1", "r2"]
    assert [at for _, at in ends] == pytest.approx([0.02, 0.03, 0.12])


def load(driver: Driver) -> dict[str, Any]:
    for i in range(6):
        driver.handle(submit(f"r{i}", prompt=20 * i + 1, max_tokens=3 + i))
    return {o.id: o.device for o in run(driver) if o.device is not None}


def test_device_times_do_not_depend_on_how_fast_the_host_is() -> None:
    """With one stage, both hosts schedule at the same moments: when a result has come."""
    cost = FlatCost(row=0.001)
    virtual = Driver(deployment(cost=cost))
    host = Driver(deployment(cost=cost, clock=HostClock()))
    assert load(virtual) == load(host)


def test_device_times_of_a_single_request() -> None:
    driver = Driver(deployment(cost=FlatCost(fixed=0.01, row=0.001)))
    driver.handle(submit("a", prompt=10, max_tokens=3))
    times = run(driver)[-1].device
    assert times is not None
    assert times.time_to_first_token_ms == pytest.approx(20.0)
    assert times.time_per_output_token_ms == pytest.approx(11.0)
    assert times.total_ms == pytest.approx(42.0)
