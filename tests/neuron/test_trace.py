"""Spans, their bound, what Perfetto reads, and how many cores were busy at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corepipe.neuron.trace import Span, Trace, busy_cores, pipe_fill


def test_json_has_a_row_for_each_core(tmp_path):
    trace = Trace()
    trace.add(7, [(0, 0.001, 0.002), (1, 0.002, 0.0035)], "decode")
    trace.write(tmp_path / "trace.json")
    read = json.loads((tmp_path / "trace.json").read_text())
    assert read["otherData"] == {"emulated": True, "dropped_spans": 0}
    names = [(e["tid"], e["args"]["name"]) for e in read["traceEvents"] if e["name"] == "thread_name"]
    assert names == [(0, "NC0"), (1, "NC1")]
    spans = [e for e in read["traceEvents"] if e["ph"] == "X"]
    assert [(e["tid"], e["ts"], e["dur"], e["args"]["batch"]) for e in spans] == [
        (0, 1000.0, 1000.0, 7),
        (1, 2000.0, pytest.approx(1500.0), 7),
    ]


def test_the_bound_drops_the_oldest():
    trace = Trace(limit=3)
    trace.add(0, [(core, float(core), core + 1.0) for core in range(5)], "prefill")
    assert [span.core for span in trace.spans] == [2, 3, 4]
    assert trace.dropped == 2
    with pytest.raises(ValueError, match="room"):
        Trace(limit=0)


def test_busy_cores_of_an_interval():
    spans = [Span(0, 0, 0.0, 4.0, "a"), Span(1, 0, 2.0, 6.0, "a"), Span(1, 1, 6.0, 7.0, "a")]
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
        spans.append(Span(core, 0, begin, free[core], "x"))
    seconds = busy_cores(spans, start, end)
    assert sum(seconds.values()) == end - start
    inside = sum(max(0, min(s.end, end) - max(s.start, start)) for s in spans)
    assert sum(n * t for n, t in seconds.items()) == inside
