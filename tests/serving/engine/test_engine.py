from __future__ import annotations

import pytest

from corepipe.serving.engine.desk import Desk
from corepipe.serving.engine.driver import Driver
from corepipe.serving.engine.engine import Landing
from corepipe.serving.engine.requests import to_request
from corepipe.serving.messages import Abort, Output, Sampling
from tests.serving.engine_support import (
    GREEDY,
    VOCAB,
    FlatCost,
    by_request,
    deployment,
    run,
    submit,
    tokens_of,
)


def test_an_engine_makes_two_moves() -> None:
    desk = Desk(deployment().replicas[0], 0, print)
    engine = desk.lane.engine
    assert engine.submit() is None
    desk.add(to_request(submit("a", prompt=3, max_tokens=2), 0.0, VOCAB, 256), GREEDY, seed=0)
    assert "a" in desk
    first = engine.submit()
    assert first is not None
    desk.launched(first)
    assert engine.submit() is None  # what is in flight is not scheduled again
    landing = engine.complete(first)
    assert isinstance(landing, Landing)
    assert [event.token for event in landing.events] == landing.result.tokens
    second = engine.submit()
    assert second is not None
    assert (second.timing.starts_at, second.timing.ready_at) == (first.timing.ready_at, 0.02)
    assert [o.finish_reason for o in desk.outputs(landing)] == [None]
    assert [o.finish_reason for o in desk.outputs(engine.complete(second))] == ["length"]
    assert desk.request_ids == ()


def test_an_abort_in_flight_drops_the_token_and_the_id_can_be_used_again() -> None:
    driver = Driver(deployment())
    driver.handle(submit("a", prompt=20, sampling=Sampling(prompt_logprobs=0, logprobs=0)))
    driver.submit()
    driver.handle(Abort(["a"]))
    driver.handle(submit("a", prompt=5, max_tokens=2, sampling=Sampling(prompt_logprobs=0, logprobs=0)))
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
        driver.handle(submit(name, prompt=prompt, sampling=Sampling(prompt_logprobs=2, logprobs=1)))
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
        params = Sampling(temperature=0.0, **sampling)
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
