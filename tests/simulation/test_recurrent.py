"""Models that keep states: a server at the device's pace and a simulation make the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corepipe.engine.assembly.assembly import assemble
from corepipe.engine.config import EngineConfig
from corepipe.engine.loop.driver import Driver
from corepipe.engine.messages import Output, Stats, Submit
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.workload import Segment, Session, Turn, Workload
from tests.engine.engine_support import by_request, run
from tests.parity import expected

SHARED = 300
"""Tokens that all prompts begin with: more than lie between snapshots, where any stay."""
LENGTHS = [(3 + 37 * n % 150, 10 + 23 * n % 50) for n in range(16)]
"""The tokens of the rest of each prompt, and of its answer."""
TIMED = {"bamba": "bamba-9b", "granitemoehybrid": "granite-4.0-h-micro", "mamba2": "mamba2-130m"}
LIMITS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 128,
    "instance": "inf2.24xlarge",
    "format": "int8",
    "tensor": 1,
    "data": 1,
}


def served(driver: Driver) -> tuple[list[Output], Stats]:
    """The last news of each request."""
    for number, (rest, answer) in enumerate(LENGTHS):
        driver.handle(Submit(str(number), [5] * SHARED + [7 + number] * rest, answer))
    news = by_request(run(driver))
    (stats,) = driver.stats()
    driver.close()
    return [outputs[-1] for outputs in news.values()], stats


def simulated(config: EngineConfig) -> SimulationReport:
    def sessions() -> Iterator[Session]:
        for number, (rest, answer) in enumerate(LENGTHS):
            segments = (Segment(0, SHARED), Segment(2 * number + 1, rest))
            yield Session(0.0, (Turn(segments, answer, 2 * number + 2),))

    return simulate(SimulationConfig(config), Workload(sessions, requests=len(LENGTHS)))


PLACED: dict[str, dict[str, Any]] = {
    "one": {"pipeline": 1},
    "two": {"pipeline": 2},
    "few": {"pipeline": 1, "num_blocks": 40},
}
QUICK = {("bamba", "two"), ("granitemoehybrid", "few"), ("mamba2", "one"), ("mamba2", "few")}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param(name, more, id=f"{name}-{how}", marks=() if (name, how) in QUICK else pytest.mark.slow)
        for name in TIMED
        for how, more in PLACED.items()
    ],
)
def test_steps_are_the_same(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is found again: no state stays on a device, so that all of a shared prefix is computed anew."""
    if "num_blocks" in more and name == "mamba2":
        more = {**more, "num_blocks": 3}
    options = {**LIMITS, **more}
    folder = expected.load(name).write(tmp_path)
    config = EngineConfig(
        model=str(folder), timing_model=TIMED[name], clock="virtual", cache_dir=tmp_path / "cache", **options
    )
    ends, stats = served(Driver(assemble(config, lambda *_: None)))
    report = simulated(EngineConfig(model=TIMED[name], **options))
    assert report.usage.steps == stats.steps
    assert stats.prefix_hits == 0
    assert (stats.preemptions > 0) is ("num_blocks" in more and name != "mamba2")
    for column, told in (("first_at", "time_to_first_token_ms"), ("last_at", "total_ms")):
        times = sorted(getattr(one.device, told) for one in ends)
        assert sorted(1e3 * report.requests[column]) == pytest.approx(times, rel=1e-9)
