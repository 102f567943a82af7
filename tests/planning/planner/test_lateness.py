"""Tests of the fewest requests that must be late, against trying every choice of those that are in time."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.planning.planner.lateness import Queue, surely_late

GAPS = st.lists(st.integers(0, 6), min_size=1, max_size=8)


def in_time(arrivals: tuple[int, ...], servers: int, seconds: int, patience: int) -> bool:
    """Tells whether all of these can begin in time: first come, first served, where all take equally long."""
    free = [0] * servers
    for arrival in arrivals:
        free.sort()
        start = max(arrival, free[0])
        if start > arrival + patience:
            return False
        free[0] = start + seconds
    return True


def fewest_late(arrivals: list[int], servers: int, seconds: int, patience: int) -> int:
    counts = range(len(arrivals), -1, -1)
    return next(
        len(arrivals) - count
        for count in counts
        for chosen in combinations(arrivals, count)
        if in_time(chosen, servers, seconds, patience)
    )


@settings(deadline=None, max_examples=300)
@given(GAPS, st.integers(1, 3), st.integers(1, 12), st.integers(0, 12))
def test_no_choice_has_fewer(gaps: list[int], servers: int, seconds: int, patience: int) -> None:
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    late = fewest_late(arrivals, servers, seconds, patience)
    assert late == 0 or surely_late(arrivals, Queue(servers, seconds, patience), late)
    assert not surely_late(arrivals, Queue(servers, seconds, patience), late + 1)


@pytest.mark.parametrize(("servers", "late"), [(1, 5), (2, 2), (5, 0)])
def test_a_burst(servers: int, late: int) -> None:
    """Six at once, each takes a second and may wait for as long, or half of it."""
    arrivals, patience = [0.0] * 6, 0.5 if servers == 1 else 1.0
    assert late == 0 or surely_late(arrivals, Queue(servers, 1.0, patience), late)
    assert not surely_late(arrivals, Queue(servers, 1.0, patience), late + 1)
