"""Workloads with LoRA adapters: priced by the ranks that a step reads, and with prefixes of their own."""

from __future__ import annotations

from corepipe.engine.config import EngineConfig
from corepipe.simulation.report import SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.workload import PrefixTree, Synthetic, with_adapters
from tests.simulation.simulations import lengths


def simulated(adapters: int = 0, rank: int = 16) -> SimulationReport:
    """A closed loop of 16 users on an instance, whose requests begin with one prefix."""
    config = EngineConfig(model="smollm2-135m-instruct", instance="inf2.xlarge", format="bf16")
    workload = Synthetic(
        lengths(64), lengths(32), 96, users=16, prefixes=PrefixTree(((1, 256),)), seed=1
    ).workload()
    if adapters:
        places = {"enable_lora": True, "max_loras": adapters, "max_lora_rank": rank}
        config = config.model_copy(update=places)
        workload = with_adapters(workload, adapters, seed=1)
    return simulate(SimulationConfig(config), workload)


def test_more_and_wider_adapters_take_longer() -> None:
    reports = [simulated(), simulated(1), simulated(8), simulated(8, rank=64)]
    rates = [report.throughput.output_tokens for report in reports]
    assert rates == sorted(rates, reverse=True)
    assert len({*rates}) == 4


def test_an_adapters_prefixes_are_its_own() -> None:
    found = [report.usage.prefix_hits for report in (simulated(), simulated(8))]
    assert found[0] > found[1] > 0


def test_the_same_settings_give_the_same_report() -> None:
    assert simulated(3).to_json() == simulated(3).to_json()
