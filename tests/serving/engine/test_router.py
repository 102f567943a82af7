from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.serving.engine.router import ReplicaView, choose_replica

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
