"""The Stats of a replica."""

from __future__ import annotations

import pytest

from corepipe.engine.loop.driver import Driver
from corepipe.neuron.chips.hardware import ENGINES
from tests.engine.engine_support import FlatCost, deployment, run, submit


def stats_of(driver):
    (stats,) = driver.stats()
    return stats


def test_the_work_of_the_engines_is_that_of_the_busy_time():
    driver = Driver(deployment(stages=2, cost=FlatCost(stages=2, tensor=2)))
    driver.handle(submit("a", max_tokens=5))
    run(driver)
    stats = stats_of(driver)
    assert len(stats.work) == 2
    for stage, work in enumerate(stats.work):
        busy = stats.core_busy_seconds[2 * stage]
        done = dict(zip(ENGINES, work.engine_seconds, strict=True))
        assert done["tensor"] == pytest.approx(busy)
        assert done["vector"] == pytest.approx(busy / 2)
        assert done["gpsimd"] == 0.0
        assert work.flops == pytest.approx(1e12 * busy)
        assert work.memory_bytes == pytest.approx(1e9 * busy)


def test_each_step_tells_its_times_once():
    driver = Driver(deployment(stages=2))
    driver.handle(submit("a", max_tokens=5))
    run(driver)
    stats = stats_of(driver)
    assert len(stats.step_seconds) == stats.steps == 5
    for on_device, in_all in stats.step_seconds:
        assert on_device == pytest.approx(0.02)
        assert in_all >= on_device
    assert stats_of(driver).step_seconds == []
