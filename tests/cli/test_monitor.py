"""`corepipe monitor` of a real server: neuron-monitor's schema, a line a period."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from corepipe.cli.run.monitor import document
from corepipe.cli.run.reading import MetricsDelta, MetricsSample, ServedDeployment
from tests.cli.test_reading import PLACED, PLACEMENT
from tests.servers import PATIENCE_SECONDS, TINY, Served, command, served
from tests.serving.http_support import FakeEngine, running


def each(names: str, value: object = 0) -> dict[str, object]:
    return dict.fromkeys(names.split(), value)


TIMED = {"period": 0.0, "error": ""}
USAGE = each("user nice system idle io_wait irq soft_irq", 0.0)
PERCENTILES = each("p0 p1 p25 p50 p75 p99 p100", 0.0)
RUNTIME_MEMORY = {
    "host": each("application_memory constants dma_buffers tensors"),
    "neuroncore_memory_usage": {
        "0": each("constants model_code model_shared_scratchpad runtime_memory tensors")
    },
}
SUBGRAPH_MEMORY = {"host": {}, "neuron_device": each("constants model_code runtime_memory tensors")}
SUBGRAPH = {
    "memory_used_bytes": {**each("host neuron_device"), "usage_breakdown": SUBGRAPH_MEMORY},
    **each("neuroncore_index neuron_device_index"),
}
MODEL = {**each("name uuid", ""), "model_id": 0, "is_running": True, "subgraphs": {"sg_00": SUBGRAPH}}
EXECUTED = "completed completed_with_err completed_with_num_err timed_out incorrect_input failed_to_queue"
REPORT = {
    "neuroncore_counters": {
        **TIMED,
        "neuroncores_in_use": {"0": {"neuroncore_utilization": 0.0, "flops": 0}},
    },
    "execution_stats": {
        **TIMED,
        "error_summary": each("generic numerical transient model runtime hardware"),
        "execution_summary": each(EXECUTED),
        "latency_stats": each("total_latency device_latency", PERCENTILES),
    },
    "memory_used": {
        **TIMED,
        "neuron_runtime_used_bytes": {**each("host neuron_device"), "usage_breakdown": RUNTIME_MEMORY},
        "loaded_models": [MODEL],
    },
    "neuron_runtime_vcpu_usage": {**TIMED, "vcpu_usage": each("user system", 0.0)},
}
DEVICE = each(
    "neuron_device_index mem_ecc_corrected mem_ecc_uncorrected sram_ecc_uncorrected sram_ecc_corrected"
)
MEMORY = "memory_total_bytes memory_used_bytes swap_total_bytes swap_used_bytes"
SCHEMA = {
    "emulated": True,
    "neuron_runtime_data": [{"pid": 0, **each("address neuron_runtime_tag error", ""), "report": REPORT}],
    "system_data": {
        "neuron_hw_counters": {**TIMED, "neuron_devices": [DEVICE]},
        "vcpu_usage": {
            **TIMED,
            "average_usage": USAGE,
            "usage_data": {"0": USAGE},
            "context_switch_count": 0,
        },
        "memory_info": {**TIMED, **each(MEMORY)},
    },
    "instance_info": each(
        "instance_name instance_id instance_type instance_availability_zone instance_availability_zone_id "
        "instance_region ami_id subnet_id error",
        "",
    ),
    "neuron_hardware_info": {
        **each("neuron_device_type neuron_device_version neuroncore_version error", ""),
        **each("neuron_device_count neuron_device_memory_size neuroncore_per_device_count"),
        "logical_neuroncore_config": 0,
    },
}
"""The user guide's document (neuron-monitor-user-guide.rst), by the types of its values; the optional
`neuron_k8s_info` is not there."""


def same_shape(found, expected, where="") -> None:
    """Objects with a number for a key, and lists, are as many as there are."""
    if isinstance(expected, dict) and set(expected) == {"0"}:
        assert all(key.isdigit() for key in found), where
        for key, value in found.items():
            same_shape(value, expected["0"], f"{where}.{key}")
    elif isinstance(expected, dict):
        assert set(found) == set(expected), where
        for key, value in expected.items():
            same_shape(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert found, where
        for value in found:
            same_shape(value, expected[0], where)
    elif isinstance(expected, float):
        assert isinstance(found, int | float), where
    else:
        assert type(found) is type(expected), where


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY, "--instance", "trn2.3xlarge", "--served-model-name", "tiny") as server:
        yield server


@contextmanager
def monitoring(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("monitor", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(server: Served) -> None:
    body = {"model": "tiny", "prompt": "Hi there", "max_tokens": 100, "ignore_eos": True}
    assert server.post("/v1/completions", json=body).status_code == 200


def next_line(process: subprocess.Popen[str]):
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def completed(document) -> int:
    """Steps, of which a line has none where the server did not answer in time."""
    return sum(
        runtime["report"]["execution_stats"]["execution_summary"]["completed"]
        for runtime in document["neuron_runtime_data"]
    )


def test_lines_are_neuron_monitors(server: Served) -> None:
    with monitoring(server.url, "--period", "300ms") as monitor:
        next_line(monitor)
        ask(server)
        documents = [next_line(monitor)]
        while sum(map(completed, documents)) < 100 and len(documents) < 1000:
            documents.append(next_line(monitor))
        monitor.send_signal(signal.SIGINT)
        assert monitor.wait(PATIENCE_SECONDS) == 0
        assert monitor.stderr is not None
        assert monitor.stderr.read() == ""
    assert sum(map(completed, documents)) == 100
    busy = [document for document in documents if completed(document)]
    expected = json.loads(json.dumps(SCHEMA))
    cores = expected["neuron_runtime_data"][0]["report"]["neuroncore_counters"]["neuroncores_in_use"]
    cores["0"]["v3d"] = {f"nc_v3.{part}": {"neuroncore_utilization": 0.0} for part in (0, 1)}
    same_shape(busy[0], expected)
    (core,) = busy[0]["neuron_runtime_data"][0]["report"]["neuroncore_counters"][
        "neuroncores_in_use"
    ].values()
    assert 50 < core["neuroncore_utilization"] <= 100
    assert core["flops"] > 0
    assert busy[0]["instance_info"]["instance_type"] == "trn2.3xlarge"
    hardware = busy[0]["neuron_hardware_info"]
    assert (hardware["neuron_device_type"], hardware["neuron_device_version"]) == ("trainium2", "v4")
    assert (hardware["neuroncore_version"], hardware["logical_neuroncore_config"]) == ("v3d", 2)


def test_an_idle_server_has_no_latencies() -> None:
    deployment = ServedDeployment(PLACEMENT)
    told = document([MetricsDelta(MetricsSample(0.0, {}), MetricsSample(5.0, {}), deployment)])
    stats = told["neuron_runtime_data"][0]["report"]["execution_stats"]
    assert stats["latency_stats"] == {"total_latency": None, "device_latency": None}
    assert stats["period"] == 5.0


def test_a_reader_that_leaves_ends_it(server: Served) -> None:
    with monitoring(server.url, "--period", "50ms") as monitor:
        next_line(monitor)
        assert monitor.stdout is not None
        monitor.stdout.close()
        assert monitor.wait(PATIENCE_SECONDS) == 1
        monitor.stdout = None


def test_a_server_that_ends_is_no_end() -> None:
    server = running(FakeEngine(), ready=PLACED)
    with monitoring(server.__enter__(), "--period", "100ms") as monitor:
        try:
            assert next_line(monitor)["neuron_runtime_data"]
        finally:
            server.__exit__(None, None, None)
        while (empty := next_line(monitor))["neuron_runtime_data"]:
            pass
        assert next_line(monitor) == empty
        assert (empty["neuron_runtime_data"], empty["system_data"]) == ([], None)
        assert empty["instance_info"]["instance_type"] == "inf2.xlarge"
        monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(PATIENCE_SECONDS) == 0
        assert monitor.stderr is not None
        assert len(monitor.stderr.read().splitlines()) == 1
