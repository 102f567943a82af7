from __future__ import annotations

import pytest

from corepipe.scheduler.next_batch import mixed, policy, segregated, waves
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import config, run, spans


def request(name: str, prompt: int, max_tokens: int = 8) -> Request:
    return Request(name, [sum(map(ord, name))] * prompt, max_tokens)


def steps(scheduler: Scheduler, count: int) -> list[list[tuple[str, int, int]]]:
    result = []
    for _ in range(count):
        batch = scheduler.schedule()
        result.append(spans(batch))
        run(scheduler, batch)
    return result


def test_mixed_runs_the_running_first_and_fills_up_with_prompts():
    scheduler = Scheduler(config(max_num_batched_tokens=8), mixed)
    scheduler.add(request("a", 3))
    scheduler.add(request("b", 10))
    assert steps(scheduler, 3) == [
        [("a", 0, 3), ("b", 0, 5)],
        [("a", 3, 1), ("b", 5, 5)],
        [("a", 4, 1), ("b", 10, 1)],
    ]


def test_segregated_takes_one_prompt_at_a_time_and_generates_when_there_is_none():
    scheduler = Scheduler(config(max_num_batched_tokens=8), segregated)
    scheduler.add(request("a", 3))
    scheduler.add(request("b", 10))
    assert steps(scheduler, 4) == [
        [("a", 0, 3)],
        [("b", 0, 8)],
        [("b", 8, 2)],
        [("a", 3, 1), ("b", 10, 1)],
    ]


def test_segregated_treats_the_last_token_of_a_prompt_as_prompt():
    scheduler = Scheduler(config(max_num_batched_tokens=8), segregated)
    scheduler.add(request("a", 1))
    scheduler.add(request("b", 9))
    assert steps(scheduler, 4) == [
        [("a", 0, 1)],
        [("b", 0, 8)],
        [("b", 8, 1)],
        [("a", 1, 1), ("b", 9, 1)],
    ]


def test_waves_take_whole_prompts_together_and_generate_otherwise():
    scheduler = Scheduler(config(max_num_batched_tokens=8), waves)
    for name, prompt in (("a", 3), ("b", 5), ("c", 2)):
        scheduler.add(request(name, prompt))
    assert steps(scheduler, 3) == [
        [("a", 0, 3), ("b", 0, 5)],
        [("c", 0, 2)],
        [("a", 3, 1), ("b", 5, 1), ("c", 2, 1)],
    ]


@pytest.mark.parametrize(("running", "needed"), [(1, 1), (6, 1), (7, 2), (10, 3)])
def test_requests_join_when_three_tenths_as_many_wait_as_generate(running: int, needed: int):
    """Else they wait for twenty tokens of the newest, as the documentation of TGI's launcher says."""
    for waiting in range(1, needed + 1):
        roomy = config(max_num_batched_tokens=64, max_num_seqs=32, max_model_len=128, num_blocks=256)
        scheduler = Scheduler(roomy, waves)
        for number in range(running):
            scheduler.add(request(f"r{number}", 1, max_tokens=100))
        steps(scheduler, 3)
        for number in range(waiting):
            scheduler.add(request(f"w{number}", 1, max_tokens=100))
        prompts = [spans[0][0].startswith("w") for spans in steps(scheduler, 20)]
        assert prompts.index(True) == (0 if waiting == needed else 17)


def test_policies_have_names():
    assert [policy(name) for name in ("mixed", "segregated", "waves")] == [mixed, segregated, waves]
    with pytest.raises(ValueError, match="there are mixed, segregated, waves"):
        policy("fifo")
