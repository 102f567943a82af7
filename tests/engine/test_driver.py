from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Abort, Output
from corepipe.engine.sampling_parameters import TokenSampling
from corepipe.neuron.step import SamplingBatch, StepInputs
from corepipe.neuron.timing.clock import Clock, HostClock, VirtualClock
from tests.engine.engine_support import (
    VOCAB,
    FlatCost,
    by_request,
    deployment,
    run,
    submit,
)
from tests.null_executor import NullExecutor


class Recorder(NullExecutor):
    """An executor that keeps the seeds of its batches, and counts the batches."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.seeds: set[int] = set()
        self.submitted = 0

    def submit(self, inputs: StepInputs, sampling: SamplingBatch | None) -> int:
        assert sampling is not None
        self.submitted += 1
        self.seeds.update(sampling.seed.tolist())
        return super().submit(inputs, sampling)


def check_at_rest(driver: Driver) -> None:
    """Asserts that there are no requests, no batches and no blocks held."""
    assert not driver.busy
    assert driver.patience() is None
    for replica in driver.replicas:
        replica.scheduler.check()
        assert not replica.scheduler.has_unfinished()
    assert [s.blocks_held for s in driver.stats()] == [0] * len(driver.replicas)


def check_one_end_each(outputs: list[Output], names: set[str]) -> None:
    """Asserts that each request ends once, and that nothing comes after its end."""
    news = by_request(outputs)
    assert set(news) == names
    for of_request in news.values():
        assert [o.finish_reason is not None for o in of_request] == [False] * (len(of_request) - 1) + [True]


def test_a_pipeline_stays_full() -> None:
    parts = deployment(stages=4, cost=FlatCost(4, row=1e-3))
    driver = Driver(parts)
    for i in range(8):
        driver.handle(submit(f"r{i}", max_tokens=100))
    in_flight = []
    while driver.busy:
        driver.turn()
        in_flight.append(len(driver.replicas[0].in_flight))
    assert max(in_flight) == 4
    assert parts.replicas[0].timeline.occupancy > 0.95


def test_the_same_input_gives_the_same_news() -> None:
    def news() -> list[Output]:
        driver = Driver(deployment(replicas=2, stages=2, seed=7))
        for i in range(12):
            driver.handle(submit(f"r{i}", prompt=9 * i + 1, max_tokens=5, sampling=TokenSampling()))
            driver.turn()
        return run(driver)

    assert news() == news()


def test_seeds_depend_on_the_engines_seed_and_the_requests_number_alone() -> None:
    def seeds(seed: int, replicas: int) -> set[int]:
        executors: list[Recorder] = []

        def executor() -> Recorder:
            executors.append(Recorder())
            return executors[-1]

        driver = Driver(deployment(replicas=replicas, executor=executor, seed=seed))
        for i in range(6):
            driver.handle(submit(f"r{i}", sampling=TokenSampling()))
        driver.handle(submit("own", sampling=TokenSampling(seed=42)))
        run(driver)
        return set().union(*(executor.seeds for executor in executors))

    assert seeds(1, 1) == seeds(1, 3)
    assert seeds(1, 1) & seeds(2, 1) == {42}


@pytest.mark.parametrize(("replicas", "stages"), [(1, 1), (2, 2)])
def test_an_abort_at_any_moment_ends_the_request_once(replicas: int, stages: int) -> None:
    names = {f"r{i}" for i in range(5)}
    for moment in range(30):
        driver = Driver(deployment(replicas, stages, max_num_seqs=3, max_num_batched_tokens=16))
        for name in sorted(names):
            driver.handle(submit(name, prompt=30, max_tokens=4))
        outputs = [output for _ in range(moment) for output in driver.turn()]
        driver.complete(within=inf)
        driver.handle(Abort(["r1", "r1", "r3", "unknown"]))
        outputs += run(driver)
        check_one_end_each(outputs, names)
        ends = {name: news[-1].finish_reason for name, news in by_request(outputs).items()}
        assert {ends["r0"], ends["r2"], ends["r4"]} == {"length"}
        check_at_rest(driver)


def test_news_of_a_step_come_before_an_abort_that_follows_it() -> None:
    driver = Driver(deployment())
    driver.handle(submit("a"))
    driver.submit()
    driver.complete(within=inf)
    driver.handle(Abort(["a"]))
    assert [(len(o.tokens), o.finish_reason) for o in driver.outputs()] == [(1, None), (0, "abort")]


def test_a_second_request_of_the_same_id_is_refused() -> None:
    driver = Driver(deployment(replicas=2))
    driver.handle(submit("a"))
    driver.handle(submit("a"))
    assert [o.error_kind for o in driver.outputs()] == ["invalid"]
    run(driver)


def test_the_router_finds_the_replica_with_the_cached_prefix() -> None:
    driver = Driver(deployment(replicas=2))
    driver.handle(submit("other", prompt=[1] * 5))
    driver.handle(submit("first", prompt=list(range(100))))
    run(driver)
    driver.handle(submit("second", prompt=list(range(100))))
    assert run(driver)[0].cached == 96


moves = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 120), st.integers(1, 12)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 4), st.just(0)),
    ),
    max_size=40,
)
CLOCKS: dict[str, Callable[[], Clock]] = {"virtual": VirtualClock, "host": HostClock}


@settings(max_examples=60, deadline=None)
@given(
    moves=moves,
    replicas=st.integers(1, 3),
    stages=st.integers(1, 3),
    blocks=st.integers(16, 40),
    clock=st.sampled_from(sorted(CLOCKS)),
)
def test_invariants(
    moves: list[tuple[str, int, int]], replicas: int, stages: int, blocks: int, clock: str
) -> None:
    """Each request ends once, device and clock time never go backwards, nothing is held at the end; blocks
    are scarce."""
    driver = Driver(deployment(replicas, stages, CLOCKS[clock](), num_blocks=blocks, max_num_seqs=4))
    names: set[str] = set()
    outputs: list[Output] = []
    before = [0.0] * replicas
    for kind, size, tokens in moves:
        if kind == "submit":
            names.add(f"r{len(names)}")
            driver.handle(submit(f"r{len(names) - 1}", prompt=size, max_tokens=tokens))
        elif kind == "abort":
            driver.handle(Abort([f"r{size}"]))
        else:
            for _ in range(size):
                outputs += driver.turn()
        now = [s.device_now_seconds for s in driver.stats()]
        assert all(a <= b for a, b in zip(before, now, strict=True))
        before = now
    outputs += run(driver)
    check_one_end_each(outputs, names)
    check_at_rest(driver)
