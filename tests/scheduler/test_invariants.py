"""Invariants of the scheduler under random requests; world.py has the checks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from corepipe.scheduler.request import BACKGROUND, Request
from corepipe.scheduler.scheduler import QueueFull, SchedulerConfig
from corepipe.scheduler.windowed_kv_cache import WindowedKVCache
from tests.scheduler.world import VOCAB, Guesser, World, any_pipeline

LONGEST = 40
WALKS = 12

LimitsOf = Callable[[random.Random], SchedulerConfig]
"""A function that draws limits for one kind of model.  Latents are blocks like any others here: they differ
in bytes alone."""


def limits(rng: random.Random) -> SchedulerConfig:
    """Tight limits of every kind; the pool holds one request of the longest, and not much more."""
    block_size = rng.choice([1, 2, 4, 8])
    one_request = -(-LONGEST // block_size)
    return SchedulerConfig(
        num_blocks=rng.randint(one_request, 3 * one_request),
        block_size=block_size,
        max_num_seqs=rng.randint(1, 8),
        max_num_batched_tokens=rng.randint(1, 24),
        max_model_len=LONGEST,
        prefix_cache=rng.random() < 0.8,
        max_queued_requests=rng.randint(3, 12),
        max_queued_tokens=rng.randint(LONGEST, 4 * LONGEST),
        stages=rng.randint(1, 4),
        draft_rows=rng.choice([None, None, rng.randint(1, 12)]),
    )


def limits_of_windows(rng: random.Random) -> SchedulerConfig:
    """Limits of a model in which some layers, or all, look back over a window; the pool holds hardly more
    than one request needs."""
    within = limits(rng)
    windows = tuple(rng.choice([None, rng.randint(1, LONGEST + 4)]) for _ in range(rng.randint(1, 4)))
    needed = WindowedKVCache(replace(within, windows=windows)).blocks_for(LONGEST)
    return replace(within, windows=windows, num_blocks=rng.randint(needed, 3 * needed))


def limits_of_slots(rng: random.Random) -> SchedulerConfig:
    """Limits of a recurrent model: a block is the state of a whole sequence, and there are fewer than
    seats."""
    slots = rng.randint(1, 6)
    return replace(limits(rng), num_blocks=slots, block_size=LONGEST, prefix_cache=False)


def limits_of_snapshots(rng: random.Random) -> SchedulerConfig:
    """Limits of a recurrent model whose states at the ends of blocks stay, as far as there is room."""
    within = replace(limits(rng), prefix_cache=True, block_size=rng.choice([1, 2, 4, 8, 16]))
    blocks = rng.randint(1, 16)
    kept = rng.choice([None, rng.randint(1, blocks)])
    return replace(within, state_span=within.block_size, num_blocks=blocks, max_cached_blocks=kept)


def limits_of_hybrids(rng: random.Random) -> SchedulerConfig:
    """Limits of a model with recurrent layers among others: any number of states, and of blocks."""
    within, states = limits(rng), rng.randint(1, 12)
    whole = -(-LONGEST // within.block_size) * within.block_size
    found = within.prefix_cache
    span = within.block_size * rng.randint(1, 4) if found else whole
    kept = rng.choice([None, rng.randint(1, states)])
    return replace(within, state_span=span, num_states=states, max_cached_states=kept)


def limits_of_whole_prompts(rng: random.Random) -> SchedulerConfig:
    """Limits of a model that computes a prompt in one batch, and keeps nothing of it."""
    tokens = rng.randint(LONGEST, 2 * LONGEST)
    nothing = {"num_blocks": 0, "keeps_state": False, "prefix_cache": False}
    return replace(limits(rng), **nothing, whole_prompts=True, max_num_batched_tokens=tokens)


KINDS = (
    limits,
    limits_of_windows,
    limits_of_slots,
    limits_of_snapshots,
    limits_of_hybrids,
    limits_of_whole_prompts,
)
RECURRENT = (limits_of_slots, limits_of_snapshots, limits_of_hybrids)


def world_of(limits_of: LimitsOf, rng: random.Random, policy: str) -> World:
    within = limits_of(rng)
    split = any_pipeline(rng, within.stages)
    return World(within, policy, split, recurrent=limits_of in RECURRENT)


def request(rng: random.Random, number: int, generating: float = 0.8, guessing: float = 0.5) -> Request:
    """Prompts begin alike, so that prefixes are shared; `generating` is the share of those that generate, of
    which `guessing` is the share of those that guess how they go on."""
    shared = [0, 1, 2, 3] * 5
    prompt = shared[: rng.randint(0, 20)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    made = Request(
        id=f"r{number}",
        prompt=prompt,
        max_tokens=rng.randint(1, 20) if rng.random() < generating else 0,
        arrival=number / 8,
        priority=rng.choice([0, 0, 0, 1, -1, BACKGROUND]),
        stop_ids=frozenset({rng.randrange(VOCAB)} if rng.random() < 0.4 else ()),
        min_tokens=rng.choice([0, 3]),
        owner=rng.choice(["", "", "other"]),
        cache_salt=rng.choice(["", "", "other"]),
        prompt_logits=rng.random() < 0.1,
    )
    if made.max_tokens > 0 and rng.random() < guessing:
        made.drafter = Guesser(rng)
    return made


def add(world: World, rng: random.Random) -> None:
    generating, guessing = 0.0 if world.limits.whole_prompts else 0.8, 0.0 if world.recurrent else 0.5
    new = request(rng, len(world.ends), generating, guessing)
    waiting = world.scheduler.waiting, world.scheduler.waiting_tokens
    try:
        world.add(new)
    except QueueFull:
        assert (world.scheduler.waiting, world.scheduler.waiting_tokens) == waiting
        assert (
            waiting[0] >= world.limits.max_queued_requests
            or waiting[1] + len(new.prompt) > world.limits.max_queued_tokens
        )


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**32),
        policy=st.sampled_from(["mixed", "segregated", "waves"]),
        limits_of=st.sampled_from(KINDS),
    )
    def start(self, seed, policy, limits_of):
        self.rng = random.Random(seed)
        self.world = world_of(limits_of, self.rng, policy)

    @rule()
    def add(self):
        add(self.world, self.rng)

    @precondition(lambda self: self.world.ends)
    @rule(index=st.integers(0, 100))
    def abort(self, index):
        self.world.abort(list(self.world.ends)[index % len(self.world.ends)])

    @rule()
    def schedule(self):
        self.world.schedule()

    @precondition(lambda self: self.world.flights)
    @rule()
    def land(self):
        self.world.land()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


class TestStateMachine(SchedulerMachine.TestCase):
    settings = settings(
        max_examples=30,
        stateful_step_count=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


def drive(seed: int, steps: int, limits_of: LimitsOf = limits) -> World:
    """A seeded random walk over all moves, then everything to its end."""
    rng = random.Random(seed)
    world = world_of(limits_of, rng, rng.choice(["mixed", "segregated", "waves"]))
    load = rng.uniform(0.02, 0.5)
    for _ in range(steps):
        move = rng.random()
        if move < load:
            add(world, rng)
        elif move < load + 0.01 and world.ends:
            world.abort(rng.choice(list(world.ends)[-20:]))
        elif (world.flights and rng.random() < 0.3) or (world.schedule() is None and world.flights):
            world.land()
    world.finish()
    return world


@pytest.mark.parametrize("limits_of", [limits, limits_of_windows])
def test_random_walks_meet_every_situation(limits_of):
    worlds = [drive(seed, 250, limits_of) for seed in range(WALKS)]
    assert sum(world.scheduler.preemptions for world in worlds) > 10
    assert sum(world.scheduler.prefix_hits for world in worlds) > 100
    assert {str(r.finish_reason) for world in worlds for r in world.ends} == {"stop", "length", "abort"}
    guessers = [r.drafter for world in worlds for r in world.ends if isinstance(r.drafter, Guesser)]
    accepted, drafts = sum(g.accepted for g in guessers), sum(g.drafts for g in guessers)
    assert 50 < accepted < drafts - 50


def test_nobody_is_preempted_for_a_slot_and_everybody_gets_one():
    worlds = [drive(seed, 250, limits_of_slots) for seed in range(WALKS)]
    assert {str(r.finish_reason) for world in worlds for r in world.ends} == {"stop", "length", "abort"}
    assert sum(len(r.tokens) > 0 for world in worlds for r in world.ends) > 200
    assert all(r.in_background or r.num_preemptions == 0 for world in worlds for r in world.ends)
    assert any(world.scheduler.blocks_total < world.limits.max_num_seqs for world in worlds)


@pytest.mark.parametrize("limits_of", [limits_of_snapshots, limits_of_hybrids])
def test_snapshots_are_found_and_take_no_state_from_anybody(limits_of):
    worlds = [drive(seed, 250, limits_of) for seed in range(WALKS)]
    assert sum(world.scheduler.prefix_hits for world in worlds) > 50
    assert sum(world.taken_along for world in worlds) > 10
    assert {str(r.finish_reason) for world in worlds for r in world.ends} == {"stop", "length", "abort"}


def test_whole_prompts_never_wait_for_blocks():
    worlds = [drive(seed, 250, limits_of_whole_prompts) for seed in range(WALKS)]
    assert {str(r.finish_reason) for world in worlds for r in world.ends} == {"stop", "abort"}
    assert any(world.batches < len(world.ends) for world in worlds), "they share batches"


@pytest.mark.slow
@pytest.mark.parametrize("limits_of", KINDS)
@pytest.mark.parametrize("seed", range(200))
def test_long_random_walk(seed, limits_of):
    drive(seed, 5000, limits_of)
