"""The adding and releasing of hosts, on a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from corepipe.serving.fleet.scaler import IDLE_SECONDS, PATIENT_SECONDS, FleetLoad, Scaler

SEATS = 8
BUSY = FleetLoad(hosts=2, serving=2, waiting=30, rate=5.0, open=46)
IDLE = FleetLoad(hosts=3, serving=3, waiting=0, rate=0.0, open=4)


def test_a_queue_that_drains_slowly_adds_one_host_and_then_waits_for_it() -> None:
    scaler = Scaler(1, 4, SEATS)
    assert scaler.wanted(BUSY, 0.0) == 2
    assert scaler.wanted(BUSY, PATIENT_SECONDS) == 3
    loading = FleetLoad(hosts=3, serving=2, waiting=60, rate=5.0, open=76)
    assert scaler.wanted(loading, 3 * PATIENT_SECONDS) == 3
    assert scaler.wanted(loading, 100 * PATIENT_SECONDS) == 3


def test_a_queue_that_drains_soon_adds_none() -> None:
    scaler = Scaler(1, 4, SEATS)
    soon = FleetLoad(hosts=2, serving=2, waiting=30, rate=100.0, open=46)
    assert {scaler.wanted(soon, float(now)) for now in range(100)} == {2}


def test_a_burst_adds_none() -> None:
    scaler = Scaler(1, 4, SEATS)
    calm = FleetLoad(hosts=2, serving=2, waiting=0, rate=5.0, open=16)
    for now in range(0, 100, 2):
        assert scaler.wanted(BUSY, now) == 2
        assert scaler.wanted(calm, now + 1) == 2


def test_a_host_that_is_not_needed_for_a_minute_is_let_go() -> None:
    scaler = Scaler(1, 4, SEATS)
    assert scaler.wanted(IDLE, 0.0) == 3
    assert scaler.wanted(IDLE, IDLE_SECONDS - 1) == 3
    assert scaler.wanted(IDLE, IDLE_SECONDS) == 2


works = st.builds(
    FleetLoad,
    hosts=st.integers(0, 6),
    serving=st.integers(0, 6),
    waiting=st.integers(0, 100),
    rate=st.floats(0, 100),
    open=st.integers(0, 200),
    good=st.none() | st.floats(0, 1),
)


@given(st.lists(st.tuples(works, st.floats(0, 100))))
def test_it_stays_within_its_limits_and_takes_one_step_at_a_time(
    steps: list[tuple[FleetLoad, float]],
) -> None:
    scaler, now = Scaler(2, 4, SEATS), 0.0
    for work, pause in steps:
        now += pause
        wanted = scaler.wanted(work, now)
        assert 2 <= wanted <= 4
        assert abs(wanted - min(max(work.hosts, 2), 4)) <= 1


def test_answers_that_come_late_add_a_host_and_keep_those_that_are_there() -> None:
    scaler = Scaler(1, 4, SEATS)
    late, good = replace(IDLE, good=0.94), replace(IDLE, good=0.96)
    assert scaler.wanted(late, 0.0) == 3
    assert scaler.wanted(late, PATIENT_SECONDS) == 4
    assert scaler.wanted(replace(late, hosts=4), 10 * IDLE_SECONDS) == 4
    for now in range(2):
        wanted = scaler.wanted(good, 20 * IDLE_SECONDS + now * IDLE_SECONDS)
    assert wanted == 2
