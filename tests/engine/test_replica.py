"""A replica by itself, and the outputs of its requests."""

from __future__ import annotations

from math import inf

import pytest

from corepipe.engine.batch.requests import SampledRequest, to_request
from corepipe.engine.batch.runner import Runner
from corepipe.engine.loop.driver import Driver
from corepipe.engine.loop.replica import Replica
from corepipe.engine.messages import Abort, Output, Stats
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.scheduler import QueueFull, Scheduler
from tests.engine.engine_support import (
    VOCAB,
    FlatCost,
    by_request,
    deployment,
    run,
    scheduler_config,
    submit,
    tokens_of,
)
from tests.null_executor import NullExecutor


def replica_of(*, paced: bool = True, stages: int = 1, **limits: int) -> Replica:
    timeline = Timeline(FlatCost(stages), PROFILES["ideal"])  # type: ignore[arg-type]
    scheduler = Scheduler(scheduler_config(stages=stages, **limits))
    return Replica(0, scheduler, Runner(NullExecutor(VOCAB), VOCAB, print), timeline, paced=paced)


def asked(name: str, arrival: float = 0.0, **fields: int) -> SampledRequest:
    return to_request(submit(name, **fields), arrival, 0, VOCAB, 256)


def test_a_batch_is_submitted_and_completed() -> None:
    replica = replica_of()
    assert (replica.next_event(), replica.submit(0.0)) == (inf, None)
    replica.add(asked("a", max_tokens=2))
    assert replica.next_event() == 0.0
    first = replica.submit(0.0)
    assert first is not None
    assert (first.due, replica.next_event()) == (0.01, 0.01)
    assert replica.submit(0.0) is None  # what is in flight is not scheduled again
    done = replica.complete()
    assert [[event.token] for event in done.events] == done.result.tokens
    assert (done.device_now, done.due, done.ended) == (0.01, 0.01, [])
    second = replica.submit(0.01)
    assert second is not None
    assert (second.timing.starts_at, second.timing.ready_at) == (first.timing.ready_at, 0.02)
    assert [request.id for request in replica.complete().ended] == ["a"]
    assert not replica.scheduler.has_unfinished()
    assert replica.submit(0.02) is None
    assert replica.next_event() == inf


def test_where_the_host_sets_the_pace_a_batch_is_due_at_once_and_the_device_has_its_own_time() -> None:
    replica = replica_of(paced=False)
    replica.add(asked("a", arrival=7.0, max_tokens=2))
    batch = replica.submit(7.5)
    assert batch is not None
    assert (batch.due, batch.timing.submitted_at, batch.timing.ready_at) == (7.5, 0.0, 0.01)
    assert (replica.complete().due, replica.device_now) == (7.5, 0.01)


def test_what_comes_moves_the_device_to_its_moment() -> None:
    replica = replica_of(max_queued_requests=1)
    replica.add(asked("a", arrival=3.0))
    assert (replica.device_now, replica.next_event()) == (3.0, 3.0)
    with pytest.raises(QueueFull):
        replica.add(asked("b", arrival=4.0))
    assert replica.device_now == 4.0
    assert replica.abort("b", 5.0) is None
    assert replica.device_now == 4.0
    aborted = replica.abort("a", 5.0)
    assert aborted is not None
    assert aborted.id == "a"
    assert (replica.device_now, replica.submit(5.0)) == (5.0, None)


def test_an_abort_in_flight_drops_the_token_and_the_id_can_be_used_again() -> None:
    driver = Driver(deployment())
    driver.handle(submit("a", prompt=20, sampling=TokenSampling(prompt_logprobs=0, logprobs=0)))
    driver.submit()
    driver.handle(Abort(["a"]))
    driver.handle(submit("a", prompt=5, max_tokens=2, sampling=TokenSampling(prompt_logprobs=0, logprobs=0)))
    outputs = run(driver)
    assert [o.finish_reason for o in outputs] == ["abort", None, "length"]
    assert [len(o.prompt_logprobs) for o in outputs] == [0, 4, 0]
    assert [len(o.logprobs) for o in outputs] == [0, 1, 1]


def test_cached_tokens_come_with_the_first_token() -> None:
    driver = Driver(deployment())
    for name in ("first", "second"):
        driver.handle(submit(name, prompt=list(range(40)), max_tokens=3))
        outputs = by_request(run(driver))[name]
        assert [o.cached for o in outputs] == ([0, 0, 0] if name == "first" else [32, 0, 0])


@pytest.mark.parametrize("chunk", [7, 16, 64])
def test_prompt_logprobs_come_with_the_first_token_however_the_prompt_is_cut(chunk: int) -> None:
    driver = Driver(deployment(max_num_batched_tokens=chunk))
    prompt = list(range(100, 150))
    for name in ("a", "b"):
        driver.handle(submit(name, prompt=prompt, sampling=TokenSampling(prompt_logprobs=2, logprobs=1)))
    for outputs in by_request(run(driver)).values():
        assert [entry.token for entry in outputs[0].prompt_logprobs] == prompt[1:]
        assert all(not output.prompt_logprobs for output in outputs[1:])
        assert [entry.token for o in outputs for entry in o.logprobs] == [
            t for o in outputs for t in o.tokens
        ]


def scarce(max_tokens: int = 60, **sampling: int) -> list[Output]:
    """Five requests that need more blocks than there are."""
    driver = Driver(deployment(num_blocks=16, max_num_batched_tokens=64))
    for i in range(5):
        params = TokenSampling(temperature=0.0, **sampling)
        driver.handle(submit(f"r{i}", prompt=40 + i, max_tokens=max_tokens, sampling=params))
    return run(driver)


def test_preemption_changes_no_token_and_is_counted() -> None:
    outputs = scarce()
    assert sum(output.preemptions for output in outputs) > 0
    driver = Driver(deployment())
    for i in range(5):
        driver.handle(submit(f"r{i}", prompt=40 + i, max_tokens=60))
    assert tokens_of(outputs) == tokens_of(run(driver))


def test_preemption_reports_no_prompt_token_twice() -> None:
    for name, outputs in by_request(scarce(prompt_logprobs=0)).items():
        told = [entry.token for output in outputs for entry in output.prompt_logprobs]
        assert told == [2 + i for i in range(1, 40 + int(name[1:]))]


def test_times_on_the_device() -> None:
    driver = Driver(deployment(max_num_seqs=1))
    for name in ("a", "b"):
        driver.handle(submit(name, max_tokens=4))
    times = {o.id: o.device for o in run(driver) if o.device is not None}
    assert [times[name].time_in_queue_ms for name in "ab"] == pytest.approx([0.0, 40.0])
    for one in times.values():
        assert one.time_to_first_token_ms - one.time_in_queue_ms == pytest.approx(10.0)
        assert one.total_ms - one.time_to_first_token_ms == pytest.approx(30.0)


def test_stats_count_what_was_done() -> None:
    driver = Driver(deployment(stages=2, cost=FlatCost(stages=2, row=1e-4)))
    driver.handle(submit("a", prompt=5, max_tokens=3))
    driver.handle(submit("b", prompt=6, max_tokens=3))
    (waiting,) = driver.stats()
    assert (waiting.waiting, waiting.waiting_tokens, waiting.running) == (2, 11, 0)
    run(driver)
    (stats,) = driver.stats()
    assert (stats.steps, stats.prompt_tokens, stats.generation_tokens) == (6, 11, 6)
    assert sorted(stats.iteration_tokens) == [1, 1, 1, 1, 5, 6]
    assert stats.core_busy_seconds == pytest.approx([0.0615, 0.0615])
    assert stats.device_busy_seconds == pytest.approx(stats.device_now_seconds) == pytest.approx(0.0721)
    assert driver.stats()[0].iteration_tokens == []


def test_an_aborted_request_without_a_token_has_no_device_times() -> None:
    driver = Driver(deployment())
    driver.handle(submit("a"))
    driver.handle(Abort(["a"]))
    (output,) = driver.outputs()
    assert (output.finish_reason, output.device) == ("abort", None)


def stats_of(driver: Driver) -> Stats:
    (stats,) = driver.stats()
    return stats


def test_the_work_of_the_engines_is_that_of_the_busy_time() -> None:
    driver = Driver(deployment(stages=2, cost=FlatCost(stages=2, tensor=2)))
    driver.handle(submit("a", max_tokens=5))
    run(driver)
    stats = stats_of(driver)
    assert len(stats.work) == 2
    for stage, work in enumerate(stats.work):
        busy = stats.core_busy_seconds[2 * stage]
        done = dict(zip(ENGINES, work.engine_seconds, strict=True))
        assert done["tensor"] == pytest.approx(busy)
        assert done["vector"] == pytest.approx(busy / 2)
        assert done["gpsimd"] == 0.0
        assert work.flops == pytest.approx(1e12 * busy)
        assert work.memory_bytes == pytest.approx(1e9 * busy)


def test_each_step_tells_its_times_once() -> None:
    driver = Driver(deployment(stages=2))
    driver.handle(submit("a", max_tokens=5))
    run(driver)
    stats = stats_of(driver)
    assert len(stats.step_seconds) == stats.steps == 5
    for on_device, in_all in stats.step_seconds:
        assert on_device == pytest.approx(0.02)
        assert in_all >= on_device
    assert stats_of(driver).step_seconds == []
