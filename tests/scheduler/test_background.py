"""Requests in the background, such as the lines of batches: they run while there is no other."""

from __future__ import annotations

import random

import pytest

from corepipe.scheduler.request import BACKGROUND, BACKGROUND_TOKENS, Request
from corepipe.scheduler.scheduler import Scheduler
from tests.scheduler.world import World, any_pipeline, config, run, spans


def live(name: str, prompt: int = 4, tokens: int = 3) -> Request:
    return Request(name, [1] * prompt, max_tokens=tokens)


def background(name: str, prompt: int = 4, tokens: int = 3) -> Request:
    return Request(name, [2] * prompt, max_tokens=tokens, priority=BACKGROUND)


def step(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    batch = scheduler.schedule()
    found = spans(batch)
    run(scheduler, batch)
    return found


def test_it_stops_where_it_is_while_there_is_another_and_goes_on():
    scheduler = Scheduler(config())
    scheduler.add(background("b"))
    assert step(scheduler) == [("b", 0, 4)]
    scheduler.add(background("c"))
    scheduler.add(live("a"))
    assert [step(scheduler) for _ in range(3)] == [[("a", 0, 4)], [("a", 4, 1)], [("a", 5, 1)]]
    assert step(scheduler) == [("b", 4, 1), ("c", 0, 4)]
    assert scheduler.preemptions == 0


def test_it_gives_up_its_seat_and_its_blocks():
    scheduler = Scheduler(config(max_num_seqs=2, num_blocks=4, prefix_cache=False))
    for name in "bc":
        scheduler.add(background(name))
    step(scheduler)
    scheduler.add(live("a", prompt=13, tokens=4))
    assert step(scheduler) == [("a", 0, 13)]
    assert scheduler.preemptions == 1 + 1
    scheduler.abort("a")
    assert {name for name, *_ in step(scheduler)} == {"b", "c"}


def test_nobody_is_preempted_for_it():
    scheduler = Scheduler(config(max_num_seqs=1))
    scheduler.add(background("b"))
    step(scheduler)
    scheduler.add(background("c"))
    assert step(scheduler) == [("b", 4, 1)]


def test_its_batches_are_small():
    scheduler = Scheduler(config(max_num_batched_tokens=64))
    scheduler.add(background("b", prompt=100))
    assert step(scheduler) == [("b", 0, BACKGROUND_TOKENS)]
    scheduler.add(live("a", prompt=100))
    assert step(scheduler) == [("a", 0, 64)]


def test_what_waits_behind_does_not_keep_a_step_from_being_queued_in_advance():
    scheduler = Scheduler(config(block_size=64))
    scheduler.add(background("b"))
    step(scheduler)
    scheduler.add(background("c"))
    scheduler.add(live("a", tokens=9))
    step(scheduler)
    batch = scheduler.schedule()
    assert spans(batch) == [("a", 4, 1)]
    assert scheduler.repeats(batch)


@pytest.mark.parametrize("policy", ["mixed", "segregated"])
@pytest.mark.parametrize("seed", range(8))
def test_others_have_the_batches_that_they_have_without_it(policy: str, seed: int) -> None:
    """One stage, where no batch is in flight when others come: what they are given is the same, but for
    the blocks of the prefix cache that the background has taken."""

    def batches(*, with_background: bool) -> list[list[tuple[str, int, int]]]:
        rng = random.Random(seed)
        limits = config(max_num_seqs=3, num_blocks=40, max_num_batched_tokens=16, prefix_cache=False)
        world, found = World(limits, policy, any_pipeline(rng, 1)), []
        for number in range(60):
            if rng.random() < 0.3:
                world.add(live(f"a{number}", rng.randint(1, 40), rng.randint(1, 12)))
            beside = rng.random() < 0.5, rng.randint(1, 40), rng.randint(1, 12)
            if with_background and beside[0]:
                world.add(background(f"b{number}", *beside[1:]))
            batch = world.schedule()
            if batch is not None:
                names = {name[0] for name, *_ in spans(batch)}
                assert names in ({"a"}, {"b"})
                if names == {"a"}:
                    found.append(spans(batch))
                world.land()
        return found

    assert batches(with_background=False) == batches(with_background=True)
