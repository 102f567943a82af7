"""The change of counters over the last seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corepipe.serving.telemetry.observer import STEP_SECONDS, WINDOW_SECONDS, History


def history(*readings):
    made = History()
    for at, value in readings:
        made.add(at, value)
    return made


def test_one_reading_tells_of_no_change():
    assert history().change(0.0) is None
    assert history((0.0, 1)).change(100.0) is None


def test_what_changed_in_the_window():
    change = history((0.0, 1), (2.0, 5), (4.0, 9)).change(4.0)
    assert (change.before, change.after, change.apart, change.passed) == (1, 9, 4.0, 4.0)
    later = history((0.0, 1), (2.0, 5), (4.0, 9)).change(8.0)
    assert (later.before, later.after, later.passed) == (5, 9, WINDOW_SECONDS)


def test_after_the_window_there_was_no_change():
    assert history((0.0, 1), (1.0, 5)).change(6.1) is None


def test_a_long_silence_counts_as_the_window():
    change = history((0.0, 1), (600.0, 2)).change(600.0)
    assert (change.apart, change.passed) == (600.0, WINDOW_SECONDS)


def test_a_clear_forgets_the_counters():
    made = history((0.0, 7), (1.0, 9))
    made.clear()
    made.add(2.0, 0)
    assert made.change(2.0) is None


@given(st.lists(st.floats(0.001, 3.0), min_size=2, max_size=200))
def test_the_latest_reading_is_there_and_few_are_kept(gaps):
    made, now = History(), 0.0
    for at, gap in enumerate(gaps):
        now += gap
        made.add(now, at)
        assert made.change(now) is None or made.change(now).after == at
        assert len(made._kept) <= WINDOW_SECONDS / STEP_SECONDS * 2 + 3
