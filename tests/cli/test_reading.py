"""Changes between two samples of a server's metrics."""

from __future__ import annotations

import os
import threading

import httpx
import pytest
from msgspec.structs import replace

from corepipe.cli.run.reading import (
    MetricsDelta,
    MetricsSample,
    MonitoredServer,
    ServedDeployment,
    UnreachableError,
)
from corepipe.errors import UserError
from tests.serving.http_support import READY, STATS, FakeEngine, running

MEMORY = {"weights": 100, "kv_cache": 20, "buffers": 3}
PLACEMENT = {
    "model": "tiny",
    "timing_model": None,
    "format": "int8",
    "instance": "inf2.xlarge",
    "logical_neuroncore_config": 1,
    "clock": "host",
    "time_scale": 1.0,
    "cores": [{"memory_bytes": MEMORY}] * 2,
}
PLACED = replace(READY, placement=PLACEMENT, pid=os.getpid())


def between(before, after, seconds=2.0, **placement):
    return MetricsDelta(
        MetricsSample(10.0, before),
        MetricsSample(10.0 + seconds, after),
        ServedDeployment({**PLACEMENT, **placement}),
    )


def counter(*values, **labels):
    return [({**labels, "at": str(at)}, value) for at, value in enumerate(values)]


def buckets(*counts, ends=("0.1", "0.2", "+Inf")):
    return {"x_bucket": [({"le": end}, count) for end, count in zip(ends, counts, strict=True)]}


def test_rates_are_of_all_series_and_new_counters_count_from_0():
    told = between(
        {"a": counter(5, 10), "b": counter(100)}, {"a": counter(8, 11), "b": counter(6), "c": counter(4)}
    )
    assert (told.rate("a"), told.rate("a", at="0")) == (2.0, 1.5)
    assert told.rate("b") == 3.0  # the server has started anew
    assert told.rate("c") == 2.0
    assert told.rate("nothing") == 0.0
    assert told.ratio("a", "b") == 4 / 6
    assert told.ratio("a", "nothing") is None


@pytest.mark.parametrize(("share", "value"), [(0.25, 0.05), (0.5, 0.1), (0.75, 0.15), (1.0, 0.2), (0.0, 0.0)])
def test_quantiles_are_linear_within_a_bucket(share, value):
    told = between(buckets(10, 10, 10), buckets(12, 14, 14))
    assert told.quantile("x", share) == pytest.approx(value)


def test_quantiles_at_the_ends():
    assert between(buckets(1, 1, 1), buckets(1, 1, 1)).quantile("x", 0.5) is None
    assert between({}, {}).quantile("x", 0.5) is None
    assert between(buckets(0, 0, 0), buckets(0, 0, 4)).quantile("x", 0.5) == 0.2  # all above the last bound


def core_series(device, busy, tensor, flops):
    labels = {"engine": "0", "core": "1"}
    return {
        "corepipe_device_seconds_total": [({"engine": "0"}, device)],
        "corepipe_core_busy_seconds_total": [(labels, busy)],
        "corepipe_core_engine_busy_seconds_total": [({**labels, "unit": "tensor"}, tensor)],
        "corepipe_core_flops_total": [(labels, flops)],
    }


def test_cores_under_the_host_clock_are_shares_of_emulated_time():
    told = between(core_series(1, 1, 1, 0), core_series(5, 3, 2, 8e12))
    first, second = told.cores
    assert (first.core, first.busy, first.memory) == (0, 0.0, MEMORY)
    assert (second.busy, second.engines["tensor"], second.engines["dma"]) == (0.5, 0.25, 0.0)
    assert second.flops == 2e12
    assert told.emulated_seconds == 4


def test_cores_at_the_devices_pace_are_shares_of_what_passed():
    told = between(core_series(1, 1, 1, 0), core_series(100, 1.5, 1, 0), clock="device", time_scale=2.0)
    assert told.cores[1].busy == 0.5


def test_an_idle_device_did_nothing():
    told = between(core_series(5, 3, 2, 8), core_series(5, 3, 2, 8))
    assert [core.busy for core in told.cores] == [0.0, 0.0]


@pytest.fixture(scope="module")
def url():
    engine = FakeEngine()
    with running(engine, ready=PLACED) as url:
        engine.on_stats(STATS)
        yield url


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/"])
@pytest.mark.parametrize("scheme", [True, False])
def test_a_server_is_read(url, form, scheme):
    server = MonitoredServer(form.format(url if scheme else url.removeprefix("http://")), None)
    reading = server.read()
    server.close()
    assert server.url == url
    assert reading.total("vllm:num_requests_running") == 2
    assert reading.by("neuroncore_utilization_ratio", "neuroncore") == {"0": 0.0, "1": 0.0}
    assert reading.total("corepipe_core_engine_busy_seconds_total", unit="tensor", core="1") == 0.2


def test_what_it_serves_is_asked_once(url):
    server = MonitoredServer(url, None)
    (deployment,) = server.deployments()
    server.close()
    assert (deployment.model, deployment.instance.name, deployment.cores) == ("tiny", "inf2.xlarge", 2)


def test_what_does_not_answer_is_named():
    for address in ("http://127.0.0.1:9", "nowhere.invalid", "http://[", "ftp://x"):
        server = MonitoredServer(address, None)
        with pytest.raises(UserError, match="no corepipe server answers there"):
            server.deployments()
        with pytest.raises(UnreachableError):
            server.read()
        server.close()


def test_keys():
    with running(FakeEngine(), ready=PLACED, api_keys=("secret",)) as url:
        for key, says in ((None, "--api-key"), ("wrong", "--api-key")):
            server = MonitoredServer(url, key)
            with pytest.raises(UserError, match=says):
                server.deployments()
            server.close()
        server = MonitoredServer(url, "secret")
        assert server.deployments()[0].model == "tiny"
        assert server.read().series
        server.close()


def test_another_version_is_refused():
    with running(FakeEngine()) as url:  # its placement has no cores
        server = MonitoredServer(url, None)
        with pytest.raises(UserError, match="not one that this version reads"):
            server.deployments()
        server.close()


def test_a_server_that_loads_is_named():
    engine = FakeEngine(start_gate=threading.Event())
    with running(engine, ready=None) as url:
        server = MonitoredServer(url, None)
        with pytest.raises(UserError, match="503"):
            server.deployments()
        server.close()
        engine.start_gate.set()
        assert httpx.get(url + "/health/live").status_code == 200
