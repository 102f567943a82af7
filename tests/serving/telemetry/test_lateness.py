"""The check that the host keeps up: one warning when it does not, with the time scale to use."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import StepPace
from corepipe.neuron.step import SamplingBatch, StepInputs, StepOutput
from corepipe.neuron.timing.clock import PacedClock
from corepipe.serving.telemetry.lateness import (
    FEWEST_STEPS,
    HOST_IS_SLOWER,
    WINDOW_STEPS,
    Lateness,
    LatenessVerdict,
    late_at,
)
from tests.engine.engine_support import VOCAB, FlatCost, ManualTime, deployment, submit
from tests.null_executor import NullExecutor
from tests.serving.http_support import STATS

STEP = 0.01
"""The device seconds of each step."""


def steps(late: int, in_time: int = 0, behind: float = 0.005) -> list[StepPace]:
    """Makes steps, each after a pause in which the host catches up."""
    return [StepPace(1.0, STEP, behind)] * late + [StepPace(1.0, STEP, 0.0)] * in_time


def told(*paces: tuple[int, list[StepPace]]) -> list[str]:
    """Returns the warnings after Stats of (replica, paces)."""
    lines: list[str] = []
    lateness = Lateness(1.0)
    lateness.warn = lines.append
    for replica, one in paces:
        lateness.take(replace(STATS, replica=replica, paces=one))
    return lines


def test_a_few_late_steps_are_nothing_to_tell() -> None:
    assert told((0, steps(3, 97)), (0, steps(3, 97))) == []


def test_more_are_told_once_with_what_would_do() -> None:
    (line,) = told((0, steps(0, 100)), (0, steps(20, 80)), (0, steps(20, 80)))
    assert line.startswith(HOST_IS_SLOWER)
    assert "not valid" in line
    assert "20 of 200" in line
    assert "--time-scale 1.6 would do" in line  # a tenth more than 15 ms for 10, less a millisecond


def test_the_first_steps_say_nothing() -> None:
    assert told((0, steps(FEWEST_STEPS - 1))) == []


def test_replicas_count_together() -> None:
    assert told((0, steps(0, 1000)), (1, steps(15, 85))) == []
    (line,) = told((0, steps(0, 100)), (1, steps(20, 180)))
    assert "20 of 300" in line


def test_a_slow_moment_is_forgiven() -> None:
    lateness = Lateness(1.0)
    lateness.take(replace(STATS, paces=steps(FEWEST_STEPS)))
    assert not lateness.verdict.valid
    lateness.take(replace(STATS, paces=steps(0, WINDOW_STEPS)))
    assert lateness.verdict.valid
    assert lateness.verdict.time_scale_needed == 1.0


def test_what_is_not_paced_is_valid() -> None:
    lateness = Lateness(1.0)
    lateness.take(STATS)
    verdict = lateness.verdict
    assert (verdict.valid, verdict.steps, verdict.time_scale_needed) == (True, 0, 1.0)


@pytest.mark.parametrize(("scale", "needed"), [(1.0, 3.4), (0.001, 3.4), (2.0, 3.4)])
def test_a_host_that_is_always_slower_needs_what_it_takes(scale: float, needed: float) -> None:
    """The host takes 30 ms for 10 of the device; the delay of each step adds to the next one."""
    lag = 0.03 - scale * STEP
    paces = [StepPace(0.0, STEP, lag * (at + 1)) for at in range(200)]
    verdict = LatenessVerdict(scale, [paces])
    assert late_at(scale, paces, scale) == verdict.late == 200
    assert verdict.time_scale_needed == pytest.approx(needed)


class Host(NullExecutor):
    """A host that takes these seconds for one batch after the other, over and over."""

    def __init__(self, time: ManualTime, seconds: list[float]) -> None:
        super().__init__(VOCAB)
        self._time = time
        self._seconds = seconds
        self._ends: list[float] = []

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        number, free = len(self._ends), self._ends[-1] if self._ends else 0.0
        self._ends.append(max(free, self._time.read()) + self._seconds[number % len(self._seconds)])
        return super().submit(inputs, sampling)

    def wait(self, ticket: int) -> StepOutput:
        self._time.sleep(max(0.0, self._ends[ticket] - self._time.read()))
        return super().wait(ticket)


def verdict_of(scale: float, seconds: list[float], stages: int) -> LatenessVerdict:
    """Returns the verdict after requests that come together, on a controlled clock."""
    time, lateness = ManualTime(), Lateness(scale)
    driver = Driver(
        deployment(
            clock=PacedClock(scale, time.read, time.sleep),
            executor=lambda: Host(time, seconds),
            cost=FlatCost(stages, fixed=STEP),
            stages=stages,
        )
    )
    for number in range(4):
        driver.handle(submit(f"r{number}", max_tokens=80))
    while driver.busy:
        driver.turn()
        for stats in driver.stats():
            lateness.take(stats)
    return lateness.verdict


@given(
    st.lists(st.sampled_from([0.0, 0.004, 0.009, 0.012, 0.03, 0.2]), min_size=1, max_size=30),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([1, 2]),
)
@settings(max_examples=25)
def test_the_time_scale_that_is_named_would_do(seconds: list[float], scale: float, stages: int) -> None:
    """The same host keeps up at that scale, and does not at four fifths of it."""
    found = verdict_of(scale, seconds, stages)
    assert found.late == late_at(scale, found.replicas[0], scale)
    assume(not found.valid)
    needed = found.time_scale_needed
    assert needed > scale
    assert verdict_of(needed, seconds, stages).valid
    assert needed <= 1.25 * scale or not verdict_of(needed / 1.25, seconds, stages).valid
