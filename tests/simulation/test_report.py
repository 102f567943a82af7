from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.simulation.columns import Floats
from corepipe.simulation.plot import page
from corepipe.simulation.report import SCHEMA, Latencies, SimulationReport, queue_growth
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.slo import Slo
from corepipe.workload.workload import PrefixTree
from tests.simulation.simulations import workload


@cache
def report(
    instance: str = "inf2.xlarge", requests: int = 80, profile: str = "nxdi", **placed: int
) -> SimulationReport:
    engine = EngineConfig(
        model="llama-3.2-1b", format="bf16", instance=instance, profile=profile, max_num_seqs=8, **placed
    )
    load = workload(
        requests, 6.0, input_len="uniform:50:700", output_len="uniform:1:90", prefixes=PrefixTree(((2, 64),))
    )
    return simulate(SimulationConfig(engine, Slo(ttft=0.03, tpot=0.03)), load)


def test_the_document_says_what_it_is_and_holds_everything() -> None:
    text = json.loads(report().to_json())
    assert (text["schema"], text["emulated"]) == (SCHEMA, True)
    assert set(text) == {
        "schema", "emulated", "corepipe", "deployment", "workload", "requests", "duration_seconds", "ttft_ms",
        "tpot_ms", "itl_ms", "e2e_ms", "queue_ms", "throughput", "intervals", "goodput", "queue", "kv_cache",
        "preemptions", "prefix_cache", "batches", "pipeline", "device", "cost",
    }  # fmt: skip
    assert text["deployment"]["runtime_profile"] == "nxdi"
    assert text["goodput"]["slo"] == {"ttft_ms": 30.0, "tpot_ms": 30.0, "e2e_ms": None}
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms"):
        assert list(text[name]) == ["mean", "p50", "p90", "p95", "p99", "max"]


def test_figures_follow_from_the_requests() -> None:
    found, latencies = report(), Latencies.of(report().requests)
    assert found.ttft is not None
    assert found.tpot is not None
    assert found.itl is not None
    assert found.queue is not None
    assert found.price_per_hour is not None
    each = found.requests["output_tokens"]
    tokens, several = each.sum(), each > 1
    assert found.ttft.p99 == pytest.approx(np.percentile(latencies.ttft, 99))
    assert found.tpot.p90 == pytest.approx(np.percentile(latencies.tpot[several], 90))
    assert found.tpot.count == several.sum() < 80
    times = found.requests["last_at"] - found.requests["first_at"]
    assert found.itl.mean * found.itl.count == pytest.approx(times.sum())
    assert found.itl.count == tokens - found.completed
    assert found.throughput.requests * found.seconds == pytest.approx(80)
    assert found.throughput.output_tokens * found.seconds == pytest.approx(tokens)
    good = (latencies.ttft <= 0.03) & (latencies.tpot <= 0.03)
    assert 0 < found.good == good.sum() < 80
    dollars = found.price_per_hour * found.seconds / 3600
    assert found.dollars_per_million_output_tokens == pytest.approx(dollars / tokens * 1e6)
    assert found.usage.waiting_mean * found.seconds == pytest.approx(found.queue.mean * found.completed)


def test_what_the_cores_did() -> None:
    usage = report().usage
    assert sum(usage.bound.values()) == pytest.approx(1.0)
    assert 0 < max(usage.engines.values()) <= 1.0
    assert 0.5 < usage.busy <= 1.0
    assert 0 < usage.kv_mean < usage.kv_peak < 1
    assert 0.1 < usage.padding < 0.95  # buckets and the compiled batch
    assert usage.prefix_hits > 0
    assert 0 < usage.waiting_mean < usage.waiting_max
    assert 1 < usage.batch_mean < 8
    assert (usage.fill, usage.occupancy) == (pytest.approx(1.0), pytest.approx(1.0))


def test_nothing_is_padded_where_every_length_is_compiled() -> None:
    assert report(profile="ideal").usage.padding == 0.0


def test_a_pipeline_is_not_always_full() -> None:
    usage = report("inf2.24xlarge", pipeline=2, tensor=1, data=1).usage
    assert 0 < usage.fill < usage.occupancy < 1


def test_one_request_of_one_token() -> None:
    engine = EngineConfig(model="llama-3.2-1b", format="bf16")
    found = simulate(SimulationConfig(engine), workload(1, 1.0, output_len=1))
    text = json.loads(found.to_json())
    assert (text["tpot_ms"], text["itl_ms"]) == (None, None)
    assert text["ttft_ms"]["p50"] == text["e2e_ms"]["p99"] > 0
    assert page(found)


def test_nothing_answered() -> None:
    engine = EngineConfig(model="llama-3.2-1b", format="bf16", max_model_len=64)
    found = simulate(SimulationConfig(engine), workload(3, 1.0, input_len=100))
    text = json.loads(found.to_json())
    assert text["requests"] == {"sent": 3, "completed": 0, "rejected": {"overloaded": 0, "invalid": 3}}
    assert text["ttft_ms"] is None
    assert page(found)


def test_the_plot_stands_alone() -> None:
    html = page(report())
    assert html == page(report())
    assert html.count("<svg") == 5
    assert "Emulated" in html
    assert "llama-3.2-1b on inf2.xlarge" in html
    assert "nan" not in html
    assert not re.search(r"src=|href=|https?:", html)


def waits(*seconds: float) -> dict[str, Floats]:
    """Requests a second apart that wait so long to be scheduled, in no order."""
    arrival = np.arange(float(len(seconds)))
    scheduled = arrival + np.array(seconds)
    columns = {"arrival": arrival, "scheduled_at": scheduled, "first_at": scheduled + 0.2}
    order = np.random.default_rng(0).permutation(len(seconds))
    return {name: column[order] for name, column in columns.items()}


@pytest.mark.parametrize(
    ("seconds", "growth"),
    [
        ([0.5 * n for n in range(20)], 0.5),
        ([0.05 * n for n in range(20)], 0.05),
        ([0.3] * 20, 0.0),
        ([0.0, 0.1], 0.0),
        ([0.0] * 10 + [0.1] * 10, 0.0),
        ([0.0] * 20, 0.0),
        ([3.0, 1.0] * 10, 0.0),
        ([5.0] * 10 + [0.0] * 10, 0.0),
        ([1.0], 0.0),
        ([], 0.0),
    ],
)
def test_a_queue_grows_where_later_requests_wait_longer(seconds: list[float], growth: float) -> None:
    assert queue_growth(waits(*seconds)) == pytest.approx(growth)


def test_requests_that_come_all_at_once_let_no_queue_grow() -> None:
    together = {**waits(*range(20)), "arrival": np.zeros(20)}
    assert queue_growth(together) == 0.0
