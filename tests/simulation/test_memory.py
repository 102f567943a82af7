"""The memory of a long run: the requests in it, and a few figures of those that have ended."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.timing.timeline import Timeline
from corepipe.scheduler.next_batch import policy
from corepipe.simulation.plain_run import LoopedSimulation
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulated_request import SimulatedRequest
from tests.simulation.simulations import Cost, limits, play, workload


@pytest.fixture
def alive() -> Iterator[Callable[[], int]]:
    """Returns how many requests exist; objects older than the test are not counted."""
    gc.collect()
    gc.freeze()
    yield lambda: sum(isinstance(each, SimulatedRequest) for each in gc.get_objects())
    gc.unfreeze()


@pytest.mark.parametrize("replicas", [1, 3])
def test_memory_is_that_of_who_is_there_and_a_few_figures_of_who_was(
    replicas: int, alive: Callable[[], int]
) -> None:
    """Requests that have ended are gone, and those to come are not there yet."""
    load = workload(450, 6.0 * replicas, input_len="uniform:10:100", output_len="uniform:1:60")
    timelines = [Timeline(Cost(fixed=0.01), PROFILES["ideal"]) for _ in range(replicas)]  # type: ignore[arg-type]
    simulation = LoopedSimulation(Scenario(limits(), policy("mixed"), timelines, load))
    seen = []

    def look(_what: str, _done: float) -> None:
        schedulers = [replica.scheduler for replica in simulation.record.replicas]
        seen.append(alive() - sum(len(scheduler.request_ids) for scheduler in schedulers))

    record = simulation.run(look)
    assert len(record.requests["arrival"]) == 450
    assert len(seen) > 5
    assert max(seen) <= 2 * replicas  # those of the batch that landed last
    tokens = int(record.requests["output_tokens"].sum())
    assert record.nbytes <= 62 * sum(map(len, record.steps)) + 52 * 450 + 12 * tokens


def test_figures_take_the_same_bytes_however_many_requests_there_are() -> None:
    small, large = (
        play(workload(requests, 3.0, input_len=20, output_len=20), native=False).nbytes / requests
        for requests in (100, 400)
    )
    assert large < 1.1 * small
