"""The metrics for Prometheus."""

from __future__ import annotations

import time

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text

from corepipe.engine.messages import Output, StepPace
from corepipe.serving.telemetry.observer import Histogram
from tests.servers import until
from tests.serving.http_support import STATS, FakeEngine, running, saying, tokenizer

BODY = {"model": "tiny", "prompt": "Hi there", "max_tokens": 6}
REASONS = ("stop", "length", "abort", "error")
PHASES = ("queue", "prefill", "decode", "inference")
PER_SEQUENCE = (
    "e2e_request_latency_seconds", "request_time_per_output_token_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_params_max_tokens", "request_prefill_kv_computed_tokens",
    *(f"request_{phase}_time_seconds" for phase in PHASES),
)  # fmt: skip
HIGHR = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0,
    30.0, 60.0,
)  # fmt: skip
"""The bounds of prometheus-fastapi-instrumentator, whose dashboards read these series."""
PER_PROMPT = ("request_params_n", "request_max_num_generation_tokens")


@pytest.fixture
def engine():
    return FakeEngine(script=saying("Hello world. ", pause=0.001))


@pytest.fixture
def url(engine):
    with running(engine) as url:
        yield url


def samples(url, **headers):
    """Returns values by name and labels, without the labels that are equal everywhere here."""
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
    assert told["vllm:prompt_tokens_cached_total",] == 25
    assert told["vllm:prompt_tokens_by_source_total", "source=local_compute"] == 35
    assert told["vllm:prompt_tokens_by_source_total", "source=local_cache_hit"] == 25
    assert told["vllm:prompt_tokens_by_source_total", "source=external_kv_transfer"] == 0
    assert told["vllm:num_requests_waiting_by_reason", "reason=capacity"] == 1
    assert told["vllm:num_requests_waiting_by_reason", "reason=deferred"] == 0
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
    full = {"finish_reason": "error", "error": "full", "error_kind": "overloaded"}
    engine.script = lambda submit: [Output(submit.id, **full)]
    assert ask(url).status_code == 429
    leave(url, engine)
    assert until(lambda: samples(url)["vllm:request_success_total", "finished_reason=abort"] == 1)
    told = samples(url)
    assert {told["vllm:request_success_total", f"finished_reason={reason}"] for reason in REASONS} == {1}
    assert told["vllm:admission_rejections_total", "reason=queue_full"] == 1
    for name in PER_SEQUENCE:
        assert told[f"vllm:{name}_count",] == 2, name


def leave(url, engine):
    """Runs a client that leaves after a token of an endless answer."""
    engine.script = lambda submit: [*saying("on ")(submit)[:1], 3600.0]
    body = BODY | {"max_tokens": 200, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body) as answer:
        assert next(answer.iter_lines()).startswith("data: ")


def test_a_refused_request_is_in_no_histogram(url, engine):
    """Any of its sequences may be refused, whatever the others had done by then."""
    refused = {"overloaded": 429, "invalid": 400, "expired": 504, "unavailable": 503}
    for kind, status in refused.items():
        engine.script = lambda submit, kind=kind: (
            [Output(submit.id, finish_reason="error", error="no", error_kind=kind)]
            if submit.id.endswith("-1")
            else [*saying("on ")(submit)[:1], 3600.0]
        )
        assert ask(url, n=3).status_code == status
    told = samples(url)
    reasons = {r: told["vllm:request_success_total", f"finished_reason={r}"] for r in REASONS}
    assert reasons == {"stop": 0, "length": 0, "abort": 0, "error": 12}
    assert told["vllm:admission_rejections_total", "reason=queue_full"] == 1
    histograms = {name: told[f"vllm:{name}_count",] for name in (*PER_SEQUENCE, *PER_PROMPT)}
    assert set(histograms.values()) == {0}, histograms


def test_tokens_that_leave_together_all_count(url, engine):
    """There are three in the first Output, two in the second, one in the last."""
    one = tokenizer().encode("on ", add_special_tokens=False)[:1]
    engine.script = lambda submit: [
        Output(submit.id, one * 3, cached=2), 0.01, Output(submit.id, one * 2), 0.01,
        Output(submit.id, one, finish_reason="length"),
    ]  # fmt: skip
    assert ask(url, stream=True).status_code == 200
    told = samples(url)
    assert told["vllm:time_to_first_token_seconds_count",] == 1
    assert told["vllm:inter_token_latency_seconds_count",] == 5
    decoding = told["vllm:request_decode_time_seconds_sum",]
    assert told["vllm:inter_token_latency_seconds_sum",] == pytest.approx(decoding)
    assert told["vllm:request_time_per_output_token_seconds_sum",] == pytest.approx(decoding / 5)


def test_times_are_the_clients_and_the_devices_are_labelled(url):
    """The device's times are in no series of vLLM's, under any clock."""
    ask(url, stream=True)
    told = samples(url)
    seconds = {
        name: told[f"vllm:{name}_seconds_sum",] for name in ("time_to_first_token", "e2e_request_latency")
    }
    part = {name: told[f"vllm:request_{name}_time_seconds_sum",] for name in PHASES}
    assert 0 <= part["queue"] + part["prefill"] <= seconds["time_to_first_token"]
    assert part["inference"] == pytest.approx(part["prefill"] + part["decode"])
    assert seconds["time_to_first_token"] + part["decode"] <= seconds["e2e_request_latency"]
    emulated = ("device=inf2.xlarge", "emulated=true")
    device = {name: told[f"corepipe_device_{name}_time_seconds_sum", *emulated] for name in PHASES}
    assert device == pytest.approx({"queue": 0.0045, "prefill": 0.008, "decode": 0.0075, "inference": 0.0155})


def test_a_request_is_measured(url, engine):
    ask(url, stream=True)
    told = samples(url)
    for name, value in {
        "request_prompt_tokens": 4, "request_generation_tokens": 6, "request_params_max_tokens": 6,
        "request_params_n": 1, "request_prefill_kv_computed_tokens": 2, "request_num_preemptions": 0,
    }.items():  # fmt: skip
        assert (told[f"vllm:{name}_count",], told[f"vllm:{name}_sum",]) == (1, value), name
    emulated = ("device=inf2.xlarge", "emulated=true")
    assert told["corepipe_device_time_to_first_token_seconds_sum", *emulated] == 0.0125
    assert told["corepipe_device_time_per_output_token_seconds_sum", *emulated] == 0.0025


def test_figures_of_a_slow_host_are_marked(url, engine):
    emulated = ("device=inf2.xlarge", "emulated=true")

    def marks():
        told = samples(url)
        names = ("corepipe_device_times_valid", "corepipe_time_scale_needed")
        return [told[name, *emulated] for name in names]

    assert marks() == [1, 1]
    engine.on_stats(replace(STATS, paces=[StepPace(1.0, 0.01, 0.02)] * 100))
    assert marks() == [0, 3.2]


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
    fine = [name[1] for name in told if name[0] == "http_request_duration_highr_seconds_bucket"]
    assert fine == [f"le={bound}" for bound in (*HIGHR, "+Inf")]
    assert told["http_request_size_bytes_sum", "handler=/v1/completions"] > 50
    assert not any("secret" in label or "/health" in label for sample in told for label in sample[1:])


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


def latest(url, name):
    """Returns the series that llm-d-router's extractor takes: of the latest timestamp, or the first."""
    families = {family.name: family for family in parse_text(httpx.get(url + "/metrics").text)}
    best, recent = None, -1
    for sample in families[name].samples:
        if (stamp := int(1000 * (sample.timestamp or 0))) > recent:
            best, recent = sample, stamp
    return best


def test_who_takes_the_first_series_sees_all_replicas(engine):
    full = replace(STATS, replica=1, running=3, waiting=40, blocks_held=64, held=2)
    engine.stats = [replace(STATS, running=0, waiting=0, blocks_held=0), full]
    with running(engine) as url:
        assert latest(url, "vllm:num_requests_running").value == 3
        assert latest(url, "vllm:num_requests_waiting").value == 40
        assert latest(url, "vllm:kv_cache_usage_perc").value == 0.5
        config = latest(url, "vllm:cache_config_info").labels
        assert (config["num_gpu_blocks"], config["block_size"], config["engine"]) == ("128", "32", "all")
        families = parse_text(httpx.get(url + "/metrics").text)
        series = [one for family in families for one in family.samples if "engine" in one.labels]
        told = {(one.name, one.labels["engine"]): one.value for one in series}
    for name, of_replicas in (("running", (0, 3)), ("waiting", (0, 40))):
        assert told[f"vllm:num_requests_{name}", "all"] == sum(of_replicas)
        assert (f"vllm:num_requests_{name}", "0") not in told  # so that a sum counts no value twice
        assert tuple(told[f"corepipe_requests_{name}", one] for one in "01") == of_replicas
    assert [told["corepipe_kv_blocks_held", one] for one in "01"] == [0, 64]


def test_one_replica_has_its_number(url):
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"):
        assert latest(url, f"vllm:{name}").labels["engine"] == "0"


def test_adapters_are_always_told_of(url):
    """Their value is the time of the scrape: of several series pickers take the highest."""
    before = time.time()
    told = latest(url, "vllm:lora_requests_info")
    assert told.labels == {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert before - 1 <= told.value <= time.time() + 1
