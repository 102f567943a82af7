"""Device time never runs backwards, is never shorter than the stages, and is full with enough batches in
flight."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import pytest
from device_graphs import TINY, llama, pipeline, whole, with_all_reduce
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.timing.cost import CostModel, StepShape
from corepipe.neuron.timing.timeline import Timeline
from tests.spans import Span, pipe_fill

INF2 = instance("inf2.48xlarge")
ASYNC = PROFILES["async"]
IDEAL = PROFILES["ideal"]
EVEN = llama(replace(TINY, layers=16, hidden=512, ffn=2048, vocab=8))
"""A model so wide that a layer outweighs the embedding and the head, and the stages take nearly the same
time."""
STEP = StepShape.decode(8, 100)


def _run(stages: int, in_flight: int, batches: int = 400) -> tuple[Timeline, list[Span]]:
    """Runs a closed loop that keeps `in_flight` batches in the pipeline, as the driver does."""
    timeline = Timeline(CostModel(pipeline(EVEN, stages), INF2, ASYNC), IDEAL)
    spans, ready, now = [], [], 0.0
    for number in range(batches):
        if len(ready) == in_flight:
            now = max(now, heappop(ready))
        timing = timeline.submit(STEP, now)
        spans += Span.of(number, timing.spans)
        heappush(ready, timing.ready_at)
        now = max(now, timing.accepts_at)
    return timeline, spans


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 8),
    st.lists(
        st.tuples(st.floats(0, 1e-3), st.integers(1, 300), st.integers(0, 500)), min_size=1, max_size=30
    ),
    st.sampled_from(sorted(PROFILES)),
)
def test_time_never_runs_backwards(stages, steps, profile):
    cost = CostModel(pipeline(EVEN, stages), INF2, ASYNC)
    timeline = Timeline(cost, PROFILES[profile])
    free, now, last_ready = [0.0] * stages, 0.0, 0.0
    for wait, rows, start in steps:
        now += wait
        shape = StepShape.of([(start, rows)], 1)
        timing = timeline.submit(shape, now)
        assert now <= timing.starts_at <= timing.ready_at
        assert now <= timing.accepts_at <= timing.ready_at
        assert timing.ready_at > last_ready
        ends = 0.0
        for core, begin, end in timing.spans:
            assert begin >= max(free[core], ends + cost.transfer_seconds(core, shape) - 1e-12)
            assert end - begin == pytest.approx(cost.seconds(core, shape))
            free[core] = ends = end
        last_ready = timing.ready_at
    assert 0 <= timeline.fill <= timeline.occupancy + 1e-9
    assert timeline.occupancy <= 1 + 1e-9


def test_an_idle_replica_takes_the_latency_and_the_host():
    cost = CostModel(pipeline(EVEN, 4), INF2, ASYNC)
    timing = Timeline(cost, PROFILES["sync"]).submit(STEP, 5.0)
    assert timing.starts_at == 5.0 + 437e-6
    assert timing.ready_at == pytest.approx(timing.starts_at + cost.latency(STEP))


def test_a_batch_submitted_when_accepted_starts_without_a_gap():
    cost = CostModel(pipeline(EVEN, 4), INF2, ASYNC)
    timeline = Timeline(cost, replace(IDEAL, host_seconds=min(cost.stage_seconds(STEP)) / 2))
    first = timeline.submit(STEP, 0.0)
    second = timeline.submit(STEP, first.accepts_at)
    assert second.starts_at == pytest.approx(first.spans[0][2])


def test_the_host_submits_one_batch_after_the_other():
    timeline = Timeline(CostModel(pipeline(EVEN, 2), INF2, ASYNC), replace(IDEAL, host_seconds=1.0))
    starts = [timeline.submit(STEP, 0.0).starts_at for _ in range(3)]
    assert starts == pytest.approx([1.0, 2.0, 3.0])


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_twice_as_many_batches_as_stages_fill_the_pipe(stages):
    timeline, spans = _run(stages, 2 * stages)
    assert timeline.fill > 0.9
    end = max(span.end for span in spans)
    assert timeline.fill == pytest.approx(pipe_fill(spans, stages, 0.0, end))


@pytest.mark.parametrize("stages", [2, 4])
def test_one_batch_in_flight_leaves_it_empty(stages):
    timeline, _ = _run(stages, 1)
    assert timeline.fill == 0
    assert timeline.occupancy <= 1 / stages


def test_a_pipe_of_one_stage_is_always_full():
    timeline, _ = _run(1, 1)
    assert timeline.fill == pytest.approx(1.0)


def test_idle_time_does_not_count():
    timeline = Timeline(CostModel(whole(EVEN), INF2, ASYNC), IDEAL)
    for now in (0.0, 10.0, 20.0):
        timeline.submit(STEP, now)
    assert timeline.fill == pytest.approx(1.0)
    assert timeline.work_seconds == pytest.approx(timeline.busy_seconds[0])


def test_nothing_submitted():
    timeline = Timeline(CostModel(pipeline(EVEN, 2), INF2, ASYNC))
    assert (timeline.fill, timeline.occupancy, timeline.busy_seconds) == (0.0, 0.0, (0.0, 0.0))


def test_tensor_ranks_run_together():
    cost = CostModel(with_all_reduce(whole(llama(TINY)), 64, 4), INF2, ASYNC)
    timeline = Timeline(cost, IDEAL)
    timing = timeline.submit(STEP, 0.0)
    assert [core for core, _, _ in timing.spans] == [0, 1, 2, 3]
    assert len({(start, end) for _, start, end in timing.spans}) == 1
    assert timeline.busy_seconds == (timing.ready_at,) * 4
