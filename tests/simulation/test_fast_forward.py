"""Running through repetitions changes no byte of what is written down, and saves nearly all the work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from corepipe.scheduler.request import Batch
from corepipe.scheduler.scheduler import Scheduler
from corepipe.simulation import fast_forward, rotation
from corepipe.simulation.record import Record
from corepipe.simulation.rotation import Rotation
from corepipe.workload.workload import PrefixTree
from tests.simulation.simulations import Cost, bytes_of, check_at_rest, play, workload


def situation(seed: int) -> dict[str, Any]:
    """A workload and a deployment of any kind: crowded or idle, short of blocks or not, open or closed."""
    rng = random.Random(seed)
    closed, turns = rng.random() < 0.4, rng.choice([1, 1, 1, 3])
    tree = PrefixTree(((1, 40), (3, 30))) if rng.random() < 0.4 else PrefixTree()
    size = rng.choice([4, 16, 32])
    stages, replicas = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    load = workload(
        rng.randint(5, 40),
        None if closed else rng.choice([0.5, 3.0, 20.0, float("inf")]),
        input_len=rng.choice(["uniform:1:80", "uniform:1:200", "lognormal:40:1:300"]),
        output_len=rng.choice([1, 40, "uniform:1:90", "lognormal:30:1:200"]),
        users=rng.randint(1, 12) if closed else None,
        turns=turns,
        think_seconds=rng.choice([0.0, 0.0, 0.3]) if closed or turns > 1 else 0.0,
        prefixes=tree,
        seed=seed,
    )
    costs = [
        Cost(stages, rng.choice([0.01, 0.02]), rng.choice([0.0, 1e-4]), rng.choice([0.0, 1e-6]), draw)
        for draw in [rng.choice([0.0, 0.0, 1e-3])]
        for _ in range(replicas)
    ]
    return {
        "load": load,
        "cost": costs,
        "profile": rng.choice(["ideal", "async", "sync"]),
        "batches": rng.choice(["mixed", "segregated"]),
        "block_size": size,
        "num_blocks": rng.choice([300, 600, 20_000]) // size,
        "max_num_seqs": rng.choice([1, 4, 16]),
        "max_num_batched_tokens": rng.choice([16, 64, 512]),
        "prefix_cache": rng.random() < 0.6,
        "max_queued_requests": rng.choice([5, 10**6]),
    }


def both(seed: int) -> Record:
    """By native twins, where there are any, by running through repetitions, and step by step."""
    of = situation(seed)
    native, fast, slow = play(**of), play(**of, native=False), play(**of, step_by_step=True)
    assert bytes_of(fast) == bytes_of(slow)
    assert bytes_of(native) == bytes_of(slow)
    check_at_rest(fast)
    check_at_rest(native)
    return native


END_BETWEEN = 2691479797
"""An end on one replica comes between a landing and the next submission of another."""


@pytest.mark.parametrize(
    "seeds", [[END_BETWEEN, *range(20, 24)], pytest.param(range(24, 200), marks=pytest.mark.slow)], ids=len
)
def test_the_same_bytes_with_and_without(seeds: Sequence[int]) -> None:
    for seed in seeds:
        both(seed)


def test_situations_of_every_kind_are_met() -> None:
    records = [both(seed) for seed in range(20)]
    schedulers = [replica.scheduler for record in records for replica in record.replicas]
    assert sum(scheduler.preemptions for scheduler in schedulers) >= 5
    assert sum(scheduler.prefix_hits for scheduler in schedulers) > 500
    assert sum(record.rejected["overloaded"] for record in records) > 5


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("users", [None, 3])
def test_most_steps_are_run_through(
    replicas: int, stages: int, users: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = []
    make = rotation.advance

    def counted(scheduler: Scheduler, repeated: Rotation, times: int) -> tuple[Batch, ...]:
        moves.append(times)
        return make(scheduler, repeated, times)

    monkeypatch.setattr(fast_forward, "advance", counted)
    load = workload(30, None if users else 0.5, input_len=20, output_len=200, users=users)
    record = play(load, cost=[Cost(stages)] * replicas, native=False)
    assert sum(moves) > 0.7 * sum(len(steps) for steps in record.steps)


@pytest.mark.parametrize("profile", ["ideal", "sync"])
@pytest.mark.parametrize("rate", [0.5, 2.0, float("inf")])
def test_steps_that_are_computed_together_are_the_same_to_the_last_bit(profile: str, rate: float) -> None:
    load = workload(40, rate, input_len="uniform:1:80", output_len="uniform:20:300")
    cost = [Cost(1, 0.0123, 1e-4, 1.7e-6, 3e-4), Cost(1, 0.0123, 1e-4, 1.7e-6, 3e-4)]
    fast = play(load, cost=cost, profile=profile)
    slow = play(load, cost=cost, profile=profile, step_by_step=True)
    assert bytes_of(fast) == bytes_of(slow)


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.slow)], ids=len)
def test_of_models_that_keep_a_state_beside_blocks_too(seeds: Sequence[int]) -> None:
    for of in map(situation, seeds):
        of |= {"state_span": 2048, "num_states": of["max_num_seqs"]}
        assert bytes_of(play(**of)) == bytes_of(play(**of, step_by_step=True))
