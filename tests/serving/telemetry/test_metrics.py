"""What Prometheus is told."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corepipe.serving.messages import Output
from corepipe.serving.telemetry.metrics import Histogram
from tests.serving.http_support import STATS, FakeEngine, running, saying

BODY = {"model": "tiny", "prompt": "Hi there", "max_tokens": 6}


@pytest.fixture
def engine():
    return FakeEngine(script=saying("Hello world. ", pause=0.001))


@pytest.fixture
def url(engine):
    with running(engine) as url:
        yield url


def samples(url, **headers):
    """Values by name and labels, without those that are the same everywhere here."""
    families = parse_text(httpx.get(url + "/metrics", headers=headers).text)
    return {(s.name, *labels(s)): s.value for family in families for s in family.samples}


def labels(sample):
    return [f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine")]


def ask(url, **fields):
    return httpx.post(url + "/v1/completions", json=BODY | fields)


def test_the_engines_figures_are_read_from_its_stats(url, engine):
    told = samples(url)
    assert told["vllm:num_requests_running",] == 2
    assert told["vllm:num_requests_waiting",] == 1
    assert told["vllm:kv_cache_usage_perc",] == 0.25
    assert told["vllm:prompt_tokens_total",] == 60
    assert told["vllm:generation_tokens_total",] == 50
    assert told["vllm:prefix_cache_queries_total",] == 100
    assert told["vllm:prefix_cache_hits_total",] == 40
    assert told["vllm:num_preemptions_total",] == 3
    emulated = ("device=inf2.xlarge", "emulated=true")
    assert told["corepipe_device_busy_seconds_total", *emulated] == 0.5
    assert told["corepipe_late_steps_total", *emulated] == 4
    assert told["corepipe_core_busy_seconds_total", "core=1", *emulated] == 0.25
    engine.on_stats(STATS)
    assert samples(url)["vllm:iteration_tokens_total_sum",] == 301
    text = httpx.get(url + "/metrics").text
    assert 'vllm:cache_config_info{block_size="32",cache_dtype="bfloat16"' in text
    assert 'num_gpu_blocks="64"' in text


def test_requests_are_counted_once_each_by_how_they_ended(url, engine):
    assert ask(url).status_code == 200
    assert ask(url, stop="wor").status_code == 200
    engine.script = lambda submit: [
        Output(submit.id, finish_reason="error", error="full", error_kind="overloaded")
    ]
    assert ask(url).status_code == 429
    engine.script = saying("on ", pause=0.05)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + "/v1/completions", json=BODY | {"max_tokens": 200}, timeout=0.1)
    while samples(url)["vllm:request_success_total", "finished_reason=abort"] == 0:
        pass
    told = samples(url)
    counts = {
        r: told["vllm:request_success_total", f"finished_reason={r}"] for r in ("stop", "length", "error")
    }
    assert counts == {"stop": 1, "length": 1, "error": 1}
    assert told["vllm:admission_rejections_total", "reason=queue_full"] == 1
    assert told["vllm:e2e_request_latency_seconds_count",] == 4


def test_a_request_is_measured(url, engine):
    ask(url, stream=True)
    told = samples(url)
    for name, value in {
        "request_prompt_tokens": 4, "request_generation_tokens": 6, "request_params_max_tokens": 6,
        "request_params_n": 1, "request_prefill_kv_computed_tokens": 2, "request_num_preemptions": 0,
    }.items():  # fmt: skip
        assert (told[f"vllm:{name}_count",], told[f"vllm:{name}_sum",]) == (1, value), name
    assert told["vllm:time_to_first_token_seconds_count",] == 1
    assert told["vllm:inter_token_latency_seconds_count",] == 5
    assert 0 < told["vllm:request_time_per_output_token_seconds_sum",] < 5
    assert told["vllm:prompt_tokens_cached_total",] == 2
    emulated = ("device=inf2.xlarge", "emulated=true")
    assert told["corepipe_device_time_to_first_token_seconds_sum", *emulated] == 0.0125
    assert told["corepipe_device_time_per_output_token_seconds_sum", *emulated] == 0.0025


def test_http_is_counted_by_fixed_labels(url):
    ask(url)
    ask(url, model="no")
    httpx.get(url + "/v1/models/whatever")
    httpx.get(url + "/secret-path")
    httpx.request("PROPFIND", url + "/v1/models")
    httpx.get(url + "/health")
    told = samples(url)

    def requests(handler, status, method):
        return told["http_requests_total", f"handler={handler}", f"method={method}", f"status={status}"]

    assert requests("/v1/completions", "2xx", "POST") == 1
    assert requests("/v1/completions", "4xx", "POST") == 1
    assert requests("/v1/models/{model}", "4xx", "GET") == 1
    assert requests("none", "4xx", "GET") == 1
    assert requests("/v1/models", "4xx", "other") == 1
    assert told["http_request_duration_highr_seconds_count",] == 5
    assert told["http_request_size_bytes_sum", "handler=/v1/completions"] > 50
    assert not any("secret" in label or "/health" in label for sample in told for label in sample[1:])


def test_openmetrics_on_request(url):
    ask(url)
    answer = httpx.get(url + "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert len(list(parse_openmetrics(answer.text))) > 40
    assert httpx.get(url + "/metrics").headers["content-type"].startswith("text/plain; version=")


def test_two_servers_share_nothing():
    with running(FakeEngine()) as one, running(FakeEngine()) as two:
        ask(one)
        assert samples(one)["vllm:e2e_request_latency_seconds_count",] == 1
        assert samples(two)["vllm:e2e_request_latency_seconds_count",] == 0


def test_bounds_belong_to_their_bucket():
    histogram = Histogram((1, 2))
    histogram.observe(1, 3)
    histogram.observe(2.5)
    family = type("Family", (), {"add_metric": lambda self, *given: setattr(self, "given", given)})()
    histogram.add_to(family, ("x",))
    assert family.given == (("x",), [("1.0", 3), ("2.0", 3), ("+Inf", 4)], 5.5)
