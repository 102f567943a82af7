"""What simulations cost: CPU time of this process for requests through a deployment in virtual time.

    .venv/bin/python benchmarks/simulation.py [--requests 10000] [--replicas 256] [--million]

A 70B on 16 cores of a trn2.48xlarge: Poisson arrivals near what it takes, prompts and answers of spread
lengths, behind a system prompt and one of eight documents.  Then a fleet of the same replicas under one
router, with as many requests in all as one replica by itself, and requests a second of CPU beside it.
With --million a million requests go through the one replica, and there is no fleet.  Memory is the most
that the process has had so far; what grows with the requests is what the record keeps, which is shown, too.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass

from corepipe.models import registry
from corepipe.neuron.timeline import Timeline
from corepipe.planning.arrivals import Arrivals
from corepipe.planning.lengths import Lengths
from corepipe.planning.simulation.report import Report
from corepipe.planning.simulation.scenario import Scenario
from corepipe.planning.simulation.simulate import run
from corepipe.planning.slo import NO_SLO
from corepipe.planning.workload import PrefixTree, Synthetic, Workload
from corepipe.serving.config import EngineConfig
from corepipe.serving.engine.device_plan import DevicePlan, batch_policy, plan_device, scheduler_config

ENGINE = EngineConfig(
    model="llama-3.1-70b",
    instance="trn2.48xlarge",
    tensor=16,
    pipeline=1,
    data=1,
    max_model_len=8192,
    max_num_seqs=128,
    clock="virtual",
)
MILLION = 10**6
RATE = 2.0
"""Requests a second for each replica: three quarters of what it takes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a simulation, and bytes that its record keeps."""

    requests: int
    replicas: int
    steps: int
    seconds: float
    kept: int

    @property
    def rate(self) -> float:
        """Requests a second of CPU."""
        return self.requests / self.seconds


def workload(requests: int, replicas: int) -> Workload:
    """Alike for any number of replicas, but for the rate."""
    prompts = Lengths.parse("lognormal:600:0.8:4000", "input-len")
    answers = Lengths.parse("lognormal:150:0.7:1000", "output-len")
    shared = PrefixTree.parse("1x512,8x256")
    arrivals = Arrivals(RATE * replicas)
    return Synthetic(prompts, answers, requests, arrivals=arrivals, prefixes=shared, seed=1).workload()


def simulated(device: DevicePlan, requests: int, replicas: int) -> Cost:
    """Plays the workload and sums it up."""
    start = time.process_time()
    limits = scheduler_config(
        ENGINE, device, device.memory.num_blocks, device.graph.max_positions, max_cached_blocks=None
    )
    cost = device.timeline(0).cost
    timelines = [Timeline(cost) for _ in range(replicas)]
    load = workload(requests, replicas)
    record = run(Scenario(limits, batch_policy(ENGINE, device), timelines, load))
    Report.of(record, device, NO_SLO, load).to_json()
    steps = sum(map(len, record.steps))
    return Cost(requests, replicas, steps, time.process_time() - start, record.nbytes)


def show(cost: Cost) -> None:
    """A line of text."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{cost.requests:>9,} requests, {cost.replicas:>3} replicas, {cost.steps:>10,} steps: "
        f"{cost.seconds:7.2f} s CPU, {cost.rate:6,.0f} requests/s, at most {peak:,.0f} MB, "
        f"of which the record has {cost.kept / cost.requests:,.0f} bytes a request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--million", action="store_true")
    given = parser.parse_args()
    device = plan_device(ENGINE, registry.architecture(ENGINE.model))
    if given.million:
        show(simulated(device, MILLION, 1))
        return
    one, fleet = (simulated(device, given.requests, replicas) for replicas in (1, given.replicas))
    show(one)
    show(fleet)
    print(f"{given.replicas} replicas under one router: {fleet.rate / one.rate:.2f} of one's requests/s")


if __name__ == "__main__":
    main()
