from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.loop.loop import ReplicaRouter, ReplicaView, choose_replica
from corepipe.scheduler.request import Request
from corepipe.scheduler.scheduler import Scheduler
from tests.engine.engine_support import scheduler_config

views = st.lists(st.builds(ReplicaView, cached=st.integers(0, 100), load=st.integers(0, 40)), min_size=1)


def test_the_longest_cached_prefix_wins() -> None:
    assert choose_replica([ReplicaView(0, 0), ReplicaView(64, 3), ReplicaView(32, 0)], margin=8) == 1


def test_without_a_prefix_the_least_load_wins_then_the_first() -> None:
    assert choose_replica([ReplicaView(0, 2), ReplicaView(0, 1), ReplicaView(0, 1)], margin=8) == 1


def test_an_overloaded_prefix_holder_is_passed_over() -> None:
    assert choose_replica([ReplicaView(512, 9), ReplicaView(0, 0)], margin=8) == 1
    assert choose_replica([ReplicaView(512, 8), ReplicaView(0, 0)], margin=8) == 0


def test_a_prefix_that_everybody_shares_does_not_herd() -> None:
    loads = [0, 0, 0]
    for _ in range(90):
        loads[choose_replica([ReplicaView(64 if i == 0 else 0, n) for i, n in enumerate(loads)], 4)] += 1
    assert max(loads) - min(loads) <= 5


@settings(deadline=None)
@given(views, st.integers(0, 10))
def test_the_choice_is_within_the_margin_and_none_within_it_has_more(
    replicas: list[ReplicaView], margin: int
) -> None:
    chosen = replicas[choose_replica(replicas, margin)]
    limit = min(view.load for view in replicas) + margin
    assert chosen.load <= limit
    assert all(view.cached <= chosen.cached for view in replicas if view.load <= limit)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(None,), (40, None)]))
def test_a_router_chooses_as_if_it_asked_everybody(seed: int, windows: tuple[int | None, ...]) -> None:
    """Requests of few prompts come, are computed and end; blocks are so few that some are evicted."""
    rng = random.Random(seed)
    limits = replace(scheduler_config(num_blocks=60, block_size=4), windows=windows)
    schedulers = [Scheduler(limits) for _ in range(rng.randint(1, 5))]
    router = ReplicaRouter(schedulers, margin=2)
    for number in range(60):
        tree = [rng.randrange(2)] * 8 + [rng.randrange(2)] * 8 + [rng.randrange(3)] * rng.randint(1, 9)
        request = Request(str(number), tree, rng.randint(1, 6))
        views = [ReplicaView(s.cached_prefix(request), s.unfinished) for s in schedulers]
        chosen = router.choose(request)
        assert chosen == choose_replica(views, 2)
        schedulers[chosen].add(request)
        router.loaded(chosen)
        for at, scheduler in enumerate(schedulers):
            if rng.random() < 0.6 and (batch := scheduler.schedule()) is not None:
                scheduler.update(batch, [(0,) if chunk.samples else () for chunk in batch.chunks])
                router.loaded(at)
