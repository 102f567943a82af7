"""The three clocks, on a hand-driven watch where they read a watch."""

from __future__ import annotations

import pytest

from corepipe.neuron.timing.clock import Clock, HostClock, PacedClock, VirtualClock


class Watch:
    """A watch whose time passes only in sleep; each sleep takes a little too long."""

    def __init__(self) -> None:
        self.time = 100.0

    def read(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds + 1e-5


def test_virtual_time_is_what_was_waited_for():
    clock = VirtualClock()
    clock.wait_until(2.5)
    clock.wait_until(1.0)
    assert clock.now() == 2.5


def test_who_sets_the_pace_and_how_long_the_host_waits():
    watch = Watch()
    paced, host = PacedClock(4.0, watch.read, watch.sleep), HostClock(watch.read)
    assert (host.paced, paced.paced, VirtualClock().paced) == (False, True, True)
    assert (paced.host_seconds_until(0.5), VirtualClock().host_seconds_until(0.5)) == (2.0, 0.0)
    watch.time += 3.0
    assert (paced.host_seconds_until(1.0), paced.host_seconds_until(0.5)) == (1.0, 0.0)
    assert host.host_seconds_until(2.0) == 0.0


def test_host_never_waits():
    watch = Watch()
    clock = HostClock(watch.read)
    clock.wait_until(50.0)
    assert clock.now() == 0.0
    watch.time += 1
    assert clock.now() == 1.0


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_paced_waits_in_device_time(scale):
    watch = Watch()
    clock = PacedClock(scale, watch.read, watch.sleep)
    clock.wait_until(0.25)
    assert 0.25 <= clock.now() <= 0.25 + 2e-5 / scale
    assert watch.time == pytest.approx(100 + 0.25 * scale, abs=3e-5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 40.0])
def test_paced_errors_do_not_add_up(scale):
    """Each wait oversleeps a little; the next still ends at its own time."""
    watch = Watch()
    clock = PacedClock(scale, watch.read, watch.sleep)
    for step in range(1, 1001):
        clock.wait_until(step * 0.01)
        assert 0 <= clock.now() - step * 0.01 <= 2e-5 / scale


def test_paced_does_not_wait_for_what_is_past():
    watch = Watch()
    clock = PacedClock(2.0, watch.read, watch.sleep)
    watch.time += 3.0
    clock.wait_until(1.0)
    clock.wait_until(1.5)
    assert watch.time == 103.0


def test_an_interrupted_wait_can_be_taken_up_again():
    """Ctrl-C ends the sleep; the time to wait for is unchanged."""
    watch = Watch()
    interrupts = [0.4]

    def sleep(seconds: float) -> None:
        if interrupts:
            watch.time += interrupts.pop()
            raise KeyboardInterrupt
        watch.sleep(seconds)

    clock = PacedClock(1.0, watch.read, sleep)
    with pytest.raises(KeyboardInterrupt):
        clock.wait_until(1.0)
    assert clock.now() == pytest.approx(0.4)
    clock.wait_until(1.0)
    assert clock.now() == pytest.approx(1.0, abs=3e-5)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_time_passes(scale):
    with pytest.raises(ValueError, match="time scale"):
        PacedClock(scale)


def test_real_clocks_do_not_run_backwards():
    clocks: list[Clock] = [HostClock(), PacedClock(), VirtualClock()]
    for clock in clocks:
        times = []
        for i in range(5):
            clock.wait_until(i * 1e-4)
            times.append(clock.now())
        assert times == sorted(times)


def test_paced_never_returns_early():
    clock = PacedClock()
    for i in range(1, 6):
        clock.wait_until(i * 1e-3)
        assert clock.now() >= i * 1e-3
