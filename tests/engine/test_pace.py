"""A late host changes nothing on the device: it does the same as for a fast host, at the arrivals that it
saw."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import DeviceTimes, Output, Submit
from corepipe.neuron.timing.clock import HostClock, PacedClock, VirtualClock
from tests.engine.engine_support import FlatCost, ManualTime, SlowExecutor, deployment, run, submit


@dataclass(frozen=True)
class Planned:
    """A request, and the time at which its client sends it, in host seconds."""

    at: float
    submit: Submit


requests = st.lists(
    st.tuples(st.floats(0, 0.05), st.integers(1, 90), st.integers(1, 12)), min_size=1, max_size=14
).map(
    lambda drawn: [
        Planned(sum(gap for gap, _, _ in drawn[: i + 1]), submit(f"r{i}", prompt, tokens))
        for i, (_, prompt, tokens) in enumerate(drawn)
    ]
)


def ends(outputs: list[Output]) -> dict[str, DeviceTimes]:
    return {output.id: output.device for output in outputs if output.device is not None}


@dataclass(frozen=True)
class Host:
    """A host with delays. delays: every wait ends late by the next of them. tick: its clock moves in steps of
    this size (0: as time does). commands: the most commands that it reads in a turn; it reads the others in
    the next."""

    delays: list[float]
    scale: float
    tick: float
    commands: int

    def clock(self, time: ManualTime) -> PacedClock:
        def read() -> float:
            return time.now // self.tick * self.tick if self.tick else time.now

        return PacedClock(self.scale, read, time.sleep)


hosts = st.builds(
    Host,
    st.lists(st.sampled_from([0.0, 1e-4, 1e-3, 8e-3, 0.03, 0.4]), min_size=1, max_size=20),
    st.sampled_from([1.0, 2.5]),
    st.sampled_from([0.0, 1e-4, 2e-3]),
    st.sampled_from([1, 2, 100]),
)


def served_by_a_host(requests: list[Planned], host: Host, **parts: int) -> dict[str, DeviceTimes]:
    """Runs the driver as `serve.serve` does."""
    time = ManualTime()
    cost = FlatCost(parts["stages"], row=1e-4)
    driver = Driver(deployment(clock=host.clock(time), cost=cost, **parts))
    news: list[Output] = []
    coming, turn = list(requests), 0
    while coming or driver.busy:
        driver.complete()
        patience = driver.patience()
        wait = max(0.0, coming[0].at - time.now) if coming else inf
        time.sleep(min(wait, inf if patience is None else patience) + host.delays[turn % len(host.delays)])
        for _ in range(host.commands):
            if coming and coming[0].at <= time.now:
                driver.handle(coming.pop(0).submit)
        driver.submit()
        news += driver.outputs()
        turn += 1
    return ends(news)


def played(requests: list[tuple[float, Submit]], **parts: int) -> dict[str, DeviceTimes]:
    """Runs the requests in virtual time, at given arrivals in seconds of the device."""
    clock = VirtualClock()
    driver = Driver(deployment(clock=clock, cost=FlatCost(parts["stages"], row=1e-4), **parts))
    news: list[Output] = []
    while requests:
        arrival = requests[0][0]
        while driver.next_event() <= arrival:
            news += driver.turn()
        clock.wait_until(arrival)
        while requests and requests[0][0] == arrival:
            driver.handle(requests.pop(0)[1])
        driver.submit()
    while driver.busy:
        news += driver.turn()
    return ends(news)


@given(requests, hosts, st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 3)]))
@settings(max_examples=70)
def test_the_decisions_are_those_of_virtual_time(
    requests: list[Planned], host: Host, shape: tuple[int, int]
) -> None:
    stages, replicas = shape
    found = served_by_a_host(requests, host, stages=stages, replicas=replicas)
    arrivals = [(found[p.submit.id].arrived_at_s, p.submit) for p in requests]
    assert arrivals == sorted(arrivals, key=lambda pair: pair[0]), "the device's time ran backwards"
    assert played(arrivals, stages=stages, replicas=replicas) == found


def test_what_comes_while_a_result_is_late_came_before_it() -> None:
    time = ManualTime()
    driver = Driver(deployment(clock=PacedClock(1.0, time.read, time.sleep)))
    driver.handle(submit("a", max_tokens=3))
    driver.submit()
    time.now = 0.5  # the batch was due at 0.01
    driver.handle(submit("b", max_tokens=3))
    found: dict[str, DeviceTimes] = {}
    while driver.busy:
        found |= ends(driver.turn())
    assert found["a"].arrived_at_s == 0.0
    assert found["b"].arrived_at_s == pytest.approx(0.01)
    assert found["b"].arrived_at_s < 0.01
    assert found["b"].time_to_first_token_ms == pytest.approx(10.0)
    assert found["a"].total_ms == pytest.approx(30.0)


@pytest.mark.parametrize(("seconds", "late"), [(0.005, 0), (0.0104, 18), (0.03, 20)])
def test_a_step_is_late_where_the_host_falls_behind(seconds: float, late: int) -> None:
    """A part of a millisecond a step does not make one step late, but adds up."""
    time = ManualTime()
    clock = PacedClock(1.0, time.read, time.sleep)
    driver = Driver(deployment(clock=clock, executor=lambda: SlowExecutor(time, seconds)))
    driver.handle(submit("a", max_tokens=20))
    while driver.busy:
        driver.turn()
    assert driver.stats()[0].late_steps == late


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
