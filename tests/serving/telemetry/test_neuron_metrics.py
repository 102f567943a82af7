"""The metrics of the emulated device under neuron-monitor's names."""

from __future__ import annotations

import os
from dataclasses import dataclass

import httpx
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corepipe.engine.config import EngineConfig
from corepipe.serving.telemetry.by_model import joint_registry
from corepipe.serving.telemetry.exposition import render
from corepipe.serving.telemetry.neuron_metrics import NeuronMetrics
from corepipe.serving.telemetry.observer import Observer
from tests.serving.http_support import READY, STATS

CORE = {"memory_bytes": {"weights": 700, "kv_cache": 200, "buffers": 100}}
PLACED = replace(READY, placement={**READY.placement, "cores": [CORE, CORE]}, pid=os.getpid())

DASHBOARD = {
    "instance_info": {"instance_id", "instance_name", "instance_type", "availability_zone", "region"},
    "system_vcpu_count": set(),
    "system_vcpu_usage_ratio": {"instance_id", "usage_type"},
    "system_memory_used_bytes": set(),
    "system_memory_total_bytes": set(),
    "neuroncore_utilization_ratio": {"neuroncore"},
    "execution_status_total": {"status_type"},
    "execution_latency_seconds": {"percentile"},
    "neuron_runtime_vcpu_usage_ratio": {"usage_type"},
    "neuron_runtime_memory_used_bytes": {"instance_id", "memory_location"},
}
"""The series in neuron-monitor-grafana.json, and the labels that its panels group by or show."""


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def metrics(now, **config):
    engine = EngineConfig(model="tiny", **config)
    observer = Observer(engine, now)
    made = NeuronMetrics("tiny", engine, observer)
    made.take = observer.take
    made.set_ready(PLACED)
    return made


def samples(made):
    body, _ = render(joint_registry({"tiny": [made]}, host=False), "")
    return [s for family in parse_text(body.decode()) for s in family.samples]


def values(made, name, label):
    return {s.labels[label]: s.value for s in samples(made) if s.name == name}


def stats(device_now, busy, **fields):
    return replace(STATS, device_now_seconds=device_now, core_busy_seconds=busy, **fields)


def test_every_series_of_the_dashboard_is_there_with_its_labels():
    clock = Clock()
    made = metrics(clock)
    made.take(STATS)
    clock.now += 1
    made.take(stats(2.5, [0.5, 0.5], steps=21))
    found = {}
    for sample in samples(made):
        found.setdefault(sample.name, set()).update(sample.labels)
        assert sample.labels["emulated"] == "true"
        assert sample.labels["instance_type"] == "inf2.xlarge"
        assert sample.labels["instance_id"].startswith("emulated-")
    assert DASHBOARD.keys() <= found.keys()
    for name, labels in DASHBOARD.items():
        assert labels <= found[name], name


def test_use_under_the_host_clock_is_a_share_of_emulated_time():
    clock = Clock()
    made = metrics(clock)
    made.take(stats(1.0, [0.25, 0.0], steps=1))
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0, "1": 0}
    clock.now += 1
    made.take(stats(3.0, [1.25, 2.0], steps=2))
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0.5, "1": 1.0}
    clock.now += 6
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0, "1": 0}


def test_use_at_the_devices_pace_is_a_share_of_what_passed():
    """The window of five seconds has one second of work, and the clock is half as fast."""
    clock = Clock()
    made = metrics(clock, clock="device", time_scale=2.0)
    made.take(stats(1.0, [0.0, 0.0], steps=1))
    clock.now += 60
    made.take(stats(31.0, [1.0, 0.5], steps=2))
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0.4, "1": 0.2}


def test_replicas_have_cores_one_after_the_other():
    made = metrics(Clock())
    for replica in (1, 0):
        made.take(replace(STATS, replica=replica))
    assert list(values(made, "neuroncore_utilization_ratio", "neuroncore")) == ["0", "1", "2", "3"]
    assert values(made, "neuroncore_memory_usage_constants", "neuroncore") == dict.fromkeys("0123", 700)
    assert values(made, "neuroncore_memory_usage_tensors", "neuroncore") == dict.fromkeys("0123", 200)
    used = values(made, "neuron_runtime_memory_used_bytes", "memory_location")
    assert used["neuron_device"] == 4000
    assert used["host"] > 1e6
    assert values(made, "execution_status_total", "status_type")["completed"] == 40


def test_another_engine_counts_anew():
    clock = Clock()
    made = metrics(clock)
    made.take(stats(9.0, [9.0, 9.0], steps=90))
    clock.now += 1
    made.take(stats(0.1, [0.0, 0.0], steps=0))
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0, "1": 0}
    clock.now += 1
    made.take(stats(1.1, [0.5, 1.0], steps=3))
    assert values(made, "neuroncore_utilization_ratio", "neuroncore") == {"0": 0.5, "1": 1.0}


def test_latencies_are_of_the_last_seconds():
    clock = Clock()
    made = metrics(clock)
    made.take(replace(STATS, step_seconds=[(0.1, at / 100) for at in range(101)]))
    told = values(made, "execution_latency_seconds", "percentile")
    assert told == {"p0": 0, "p1": 0.01, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p99": 0.99, "p100": 1.0}
    assert set(values(made, "corepipe_execution_device_latency_seconds", "percentile").values()) == {0.1}
    clock.now += 6
    assert values(made, "execution_latency_seconds", "percentile") == {}


def test_the_host_is_measured():
    clock = Clock()
    made = metrics(clock)
    deadline = os.times().user + 0.05
    while os.times().user < deadline:
        pass
    clock.now += 1.0
    assert 0 < values(made, "neuron_runtime_vcpu_usage_ratio", "usage_type")["user"] <= 1
    assert 0 < values(made, "system_vcpu_usage_ratio", "usage_type")["user"] <= 1
    (total,) = values(made, "system_memory_total_bytes", "emulated").values()
    (used,) = values(made, "system_memory_used_bytes", "emulated").values()
    assert 0 < used < total


def test_an_engine_that_is_gone_has_no_figures():
    made = metrics(Clock())
    made.set_ready(replace(PLACED, pid=2**22 + 1))
    assert values(made, "neuron_runtime_vcpu_usage_ratio", "usage_type") == {}
    assert values(made, "neuron_runtime_memory_used_bytes", "memory_location")["host"] == 0


def test_it_is_served_beside_metrics(url, engine):
    engine.on_stats(STATS)
    answer = httpx.get(url + "/metrics/neuron")
    assert answer.status_code == 200
    assert "neuroncore_utilization" not in httpx.get(url + "/metrics").text
    assert "neuroncore_utilization_ratio" in {family.name for family in parse_text(answer.text)}
