"""The number of cores that were busy at once, counted from spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spans import Span, busy_cores, pipe_fill


def test_busy_cores_of_an_interval():
    spans = [Span(0, 0, 0.0, 4.0), Span(1, 0, 2.0, 6.0), Span(1, 1, 6.0, 7.0)]
    assert busy_cores(spans, 0.0, 8.0) == {0: 1.0, 1: 2.0 + 3.0, 2: 2.0}
    assert busy_cores(spans, 3.0, 5.0) == {1: 1.0, 2: 1.0}
    assert pipe_fill(spans, 2, 0.0, 8.0) == 0.25
    assert busy_cores([], 1.0, 2.0) == {0: 1.0}
    with pytest.raises(ValueError, match="empty interval"):
        busy_cores(spans, 2.0, 2.0)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 5)), max_size=20),
    st.integers(0, 10),
    st.integers(11, 30),
)
def test_busy_seconds_add_up(raw, start, end):
    free = dict.fromkeys(range(4), 0)
    spans = []
    for core, gap, length in raw:
        begin = free[core] + gap
        free[core] = begin + length
        spans.append(Span(core, 0, begin, free[core]))
    seconds = busy_cores(spans, start, end)
    assert sum(seconds.values()) == end - start
    inside = sum(max(0, min(s.end, end) - max(s.start, start)) for s in spans)
    assert sum(n * t for n, t in seconds.items()) == inside
