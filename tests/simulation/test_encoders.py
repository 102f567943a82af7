"""Models that generate nothing: what a paced server does is what a simulation says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.engine.assembly.device_plan import batch_policy, plan_device, scheduler_config
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.deployment import Deployment, ReplicaParts
from corepipe.engine.messages import Ready
from corepipe.models.registry import architecture
from corepipe.neuron.timing.clock import Clock
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.workload import Segment, Session, Turn, Workload
from tests.engine.clocked import Clocked
from tests.engine.engine_support import VOCAB, SummingExecutor, submit

Asked = list[tuple[float, int]]


def asked(rate: float, requests: int = 200, longest: int = 200, seed: int = 16) -> Asked:
    """(arrival, tokens) of each request."""
    rng, now, found = random.Random(seed), 0.0, []
    for _ in range(requests):
        now += rng.expovariate(rate)
        found.append((now, rng.randint(1, longest)))
    return found


def workload(requests: Asked) -> Workload:
    def sessions() -> Iterator[Session]:
        for number, (at, tokens) in enumerate(requests):
            yield Session(at, (Turn((Segment(number, tokens),), 1, number, 0.0),))

    return Workload(sessions, shares_prefixes=False)


def served(engine: EngineConfig, requests: Asked) -> tuple[list[tuple[float, float]], dict[str, float]]:
    """Returns when each request came to a paced server's device and was answered, and the server's counts."""
    device = plan_device(engine, architecture(engine.model))
    assert device.encoding is not None
    limits = scheduler_config(engine, device, device.memory.num_blocks, device.graph.max_positions, None)

    def deployment(clock: Clock) -> Deployment:
        parts = tuple(
            ReplicaParts(
                SummingExecutor(),
                device.timeline(n),
                limits,
                batch_policy(engine, device),
                engine.max_batch_delay,
            )
            for n in range(device.placement.data)
        )
        ready = Ready({}, 0, limits.block_size, limits.max_model_len, "none", 0.0, task="embed")
        return Deployment(parts, clock, VOCAB, 0, ready, encoding=replace(device.encoding, per_token=False))

    clocked = Clocked(deployment)
    for number, (at, tokens) in enumerate(requests):
        clocked.submit(at, submit(str(number), [1] * tokens, 0))
    clocked.until(1e4)
    times = [clocked.told[str(number)][1].device for number in range(len(requests))]
    stats = clocked.driver.stats()
    counted = {
        "steps": sum(s.steps for s in stats),
        "padding": sum(s.padded_tokens for s in stats),
        "tokens": sum(s.prompt_tokens for s in stats),
    }
    return [(t.arrived_at_s, t.arrived_at_s + t.total_ms / 1e3) for t in times if t], counted


ONE = {"pipeline": 1, "tensor": 1, "data": 1}


def batches(options: dict[str, object], requests: Asked) -> int:
    """Returns how many batches a paced server makes of the requests; checks that a simulation makes as
    many."""
    engine = EngineConfig(model="bert-base", format="bf16", clock="device", **options)  # type: ignore[arg-type]
    told, counted = served(engine, requests)
    came = [(at, tokens) for (at, _), (_, tokens) in zip(told, requests, strict=True)]
    report = simulate(SimulationConfig(engine), workload(came))
    ended = np.sort([end for _, end in told])
    assert np.allclose(ended, np.sort(report.requests["last_at"]), rtol=0, atol=1e-9)
    assert counted["tokens"] == sum(tokens for _, tokens in requests)
    assert counted["steps"] == report.usage.steps
    return report.usage.steps


@pytest.mark.parametrize(
    "options",
    [
        ONE,
        {**ONE, "max_batch_delay": 0.004},
        {**ONE, "max_batch_delay": 0.02, "max_num_seqs": 4},
        {**ONE, "profile": "data-parallel", "max_batch_delay": 0.002},
        {**ONE, "pipeline": 2, "max_batch_delay": 0.001},
        {**ONE, "data": 2},
    ],
    ids=str,
)
def test_a_paced_server_and_a_simulation_do_the_same(options: dict[str, object]) -> None:
    assert batches(options, asked(900.0)) < 200


@given(
    st.sampled_from([1, 2, 3, 6]),
    st.sampled_from([0.0, 0.001]),
    st.floats(500.0, 1000.0),
    st.integers(0, 99),
)
@settings(max_examples=10)
def test_at_any_rate_and_with_any_number_of_replicas(data: int, delay: float, rate: float, seed: int) -> None:
    """Batches often end between two requests, so that some come in the turn that a result does."""
    options = {**ONE, "instance": "inf2.24xlarge", "data": data, "max_batch_delay": delay}
    batches(options, asked(rate * data, requests=80, seed=seed))


def test_a_batch_is_padded_to_its_longest_text_and_to_a_power_of_two() -> None:
    engine = EngineConfig(model="bert-base", format="bf16", clock="device", **ONE)  # type: ignore[arg-type]
    _, counted = served(engine, [(1.0, 100), (1.0, 20), (1.0, 130)])
    assert counted == {"steps": 2, "tokens": 250, "padding": 128 - 100 + 2 * 256 - 150}


def test_what_is_compiled_is_told() -> None:
    engine = EngineConfig(model="bert-base", clock="device", max_num_seqs=8, **ONE)  # type: ignore[arg-type]
    told = plan_device(engine, architecture("bert-base")).describe()
    assert told["buckets"] == {"lengths": [128, 256, 512], "batches": [1, 2, 4, 8]}
    engine = engine.model_copy(update={"clock": "host"})
    assert plan_device(engine, architecture("bert-base")).describe()["buckets"] == {
        "lengths": [],
        "batches": [],
    }
