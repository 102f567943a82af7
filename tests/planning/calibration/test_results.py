"""Tests of results of load tests as rows: corepipe's own, vLLM's, guidellm's."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepipe.bench.recorder import Recorder
from corepipe.bench.report import Conditions, HostEffort, LoadReport
from corepipe.bench.runner import RunSpan
from corepipe.errors import UserError
from corepipe.planning.calibration.results import MeasuredDeployment, read_result
from corepipe.workload.slo import NO_SLO

DEPLOYED = MeasuredDeployment("llama-3.1-8b", "inf2.48xlarge", "bf16", 8, 1, 3, 16, 2048)

VLLM: dict[str, Any] = {
    "date": "20261122-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 200, "request_rate": 2.5, "burstiness": 1.0, "max_concurrency": None, "duration": 84.0,
    "completed": 200, "failed": 0, "total_input_tokens": 100_000, "total_output_tokens": 25_000,
    "request_throughput": 2.38, "output_throughput": 297.6, "median_ttft_ms": 210.0, "mean_ttft_ms": 240.0,
    "median_tpot_ms": 18.2, "mean_itl_ms": 18.9, "median_itl_ms": 17.0, "mean_e2el_ms": 2500.0,
}  # fmt: skip


def distribution(mean: float, median: float) -> dict[str, Any]:
    return {
        "successful": {"mean": mean, "median": median, "count": 50},
        "errored": {"mean": 0.0, "median": 0.0},
    }


GUIDELLM: dict[str, Any] = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "config": {
                "strategy": {"type_": "concurrent", "streams": 32},
                "backend": {"target": "http://localhost:8000", "model": "org/its-model"},
            },
            "metrics": {
                "prompt_token_count": distribution(1500.4, 1500.0),
                "output_token_count": distribution(250.0, 250.0),
                "requests_per_second": distribution(1.5, 1.4),
                "request_concurrency": distribution(31.0, 32.0),
                "request_latency": distribution(20.0, 19.0),
                "time_to_first_token_ms": distribution(900.0, 800.0),
                "inter_token_latency_ms": distribution(70.0, 71.0),
                "output_tokens_per_second": distribution(375.0, 380.0),
            },
        }
    ],
}


def write(tmp_path, document: object):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    return path


def figures(found) -> dict[str, tuple[str, str, str]]:
    return {row["metric"]: (row["value"], row["unit"], row["percentile"]) for row in found}


def test_vllms_result(tmp_path) -> None:
    found = read_result(write(tmp_path, VLLM), DEPLOYED)
    assert figures(found) == {
        "ttft": ("210.0", "ms", "p50"),
        "tpot": ("18.2", "ms", "p50"),
        "itl": ("18.9", "ms", "mean"),
        "request_latency": ("2500.0", "ms", "mean"),
        "output_throughput": ("297.6", "tokens/s", "mean"),
        "request_rate": ("2.38", "req/s", "mean"),
    }
    assert {row["config_id"] for row in found} == {"result.json 1"}
    row = found[0]
    assert (row["arrival"], row["rate"], row["input_len"], row["output_len"]) == (
        "poisson",
        "2.5",
        "500",
        "125",
    )
    assert (row["parallelism"], row["batch_size"], row["seq_len"]) == ("TP8xPP1xDP3", "16", "2048")


PLACEMENT = {"emulated": True, "model": "smollm2-135m-instruct", "instance": "inf2.xlarge"}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (VLLM | {"server": PLACEMENT}, "emulated (inf2.xlarge)"),
        (VLLM | {"device": {"emulated": True, "valid": True}}, "emulated"),
        (VLLM | {"stages": [VLLM, VLLM | {"server": PLACEMENT}]}, "emulated (inf2.xlarge)"),
        ({"emulated": True, "requests": {"offered": 10}}, "emulated"),
    ],
)
def test_what_an_emulated_device_did_is_no_measurement(tmp_path, document, told) -> None:
    """A load test of a corepipe server, its stages, and the output of simulate, plan and predict are
    refused."""
    with pytest.raises(UserError) as error:
        read_result(write(tmp_path, document), DEPLOYED)
    assert f"its device is {told}: " in error.value.message


def test_a_server_that_is_no_corepipe_may_tell_anything(tmp_path) -> None:
    assert read_result(write(tmp_path, VLLM | {"server": None, "device": {"emulated": False}}), DEPLOYED)


@pytest.mark.parametrize(
    ("model", "named", "differ"),
    [
        ("llama-3.1-8b", "smollm2-135m-instruct", True),
        ("llama-3.1-8b", "HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-70B", True),
        ("mistral-7b", "Qwen/Qwen2.5-7B-Instruct", True),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3-8B-Instruct", False),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b", False),
        ("llama-3.1-8b", "our-chat-model", False),
        ("llama-3.1-8b", "/models/served", False),
        ("tests/data/tiny/llama3", "smollm2-135m", True),
        (None, "smollm2-135m", False),
    ],
)
def test_a_result_of_another_model_is_refused(tmp_path, model, named, differ) -> None:
    """Only the name of a public model is compared; a server's own alias is not."""
    document, deployed = VLLM | {"model_id": named}, replace(DEPLOYED, model=model)
    guided = json.loads(json.dumps(GUIDELLM).replace("org/its-model", named))
    for result in (document, document | {"stages": [document]}, guided):
        if differ:
            with pytest.raises(UserError, match=f"is of {named}, not of --model {model}"):
                read_result(write(tmp_path, result), deployed)
        else:
            assert read_result(write(tmp_path, result), deployed)


@pytest.mark.parametrize("kind", ["openai-embeddings", "vllm-rerank", "classify", "vllm-pooling"])
def test_load_tests_of_what_generates_nothing_are_refused(tmp_path, kind) -> None:
    with pytest.raises(UserError, match=f"is of {kind}: give a load test of what generates"):
        read_result(write(tmp_path, VLLM | {"endpoint_type": kind}), DEPLOYED)


def test_divided_experts_are_told(tmp_path) -> None:
    found = read_result(write(tmp_path, VLLM), replace(DEPLOYED, expert=8))
    assert {row["parallelism"] for row in found} == {"TP8xPP1xDP3xEP8"}


@pytest.mark.parametrize(
    ("changes", "arrival", "users"),
    [
        ({"request_rate": "inf", "max_concurrency": 8}, "concurrent", "8"),
        ({"request_rate": "inf", "max_concurrency": 1}, "synchronous", "1"),
        ({"request_rate": "inf"}, "burst", "200"),
    ],
)
def test_how_vllm_loaded_the_server(tmp_path, changes, arrival, users) -> None:
    row = read_result(write(tmp_path, VLLM | changes), DEPLOYED)[0]
    assert (row["arrival"], row["users"], row.get("rate")) == (arrival, users, None)


def test_guidellms_report(tmp_path) -> None:
    found = read_result(write(tmp_path, GUIDELLM), replace(DEPLOYED, model=None))
    assert figures(found) == {
        "ttft": ("800.0", "ms", "p50"),
        "itl": ("70.0", "ms", "mean"),
        "request_latency": ("20.0", "s", "mean"),
        "output_throughput": ("375.0", "tokens/s", "mean"),
        "request_rate": ("1.5", "req/s", "mean"),
    }
    row = found[0]
    assert (row["model"], row["arrival"], row["users"]) == ("org/its-model", "concurrent", "32")
    assert (row["input_len"], row["output_len"]) == ("1500", "250")


@pytest.mark.parametrize("place", ["scheduler", "args"])
def test_older_reports_of_guidellm_say_the_strategy_elsewhere(tmp_path, place) -> None:
    (benchmark,) = GUIDELLM["benchmarks"]
    older = {place: {"strategy": {"type_": "constant", "rate": 0.5}}, "metrics": benchmark["metrics"]}
    row = read_result(write(tmp_path, {"benchmarks": [older]}), DEPLOYED)[0]
    assert (row["arrival"], row["rate"]) == ("constant", "0.5")


def test_our_own_result_has_the_same_keys(tmp_path) -> None:
    nobody = Conditions("", "m", "completions", "", None, {"rate": 2.0}, "")
    document = LoadReport(nobody, Recorder(NO_SLO), RunSpan(0.0, 0.0, 0.0), HostEffort()).document()
    assert set(VLLM) - {"completed"} <= set(document) | {"mean_itl_ms", "mean_e2el_ms"}
    with pytest.raises(UserError, match="no figure"):
        read_result(write(tmp_path, document), DEPLOYED)
    assert len(read_result(write(tmp_path, document | VLLM), DEPLOYED)) == 6


def test_a_sweep_of_ours_is_several_runs(tmp_path) -> None:
    found = read_result(write(tmp_path, {**VLLM, "stages": [VLLM, VLLM | {"request_rate": 5.0}]}), DEPLOYED)
    assert sorted({row["rate"] for row in found}) == ["2.5", "5.0"]
    assert len({row["config_id"] for row in found}) == 2


def test_what_it_ran_on_must_be_said(tmp_path) -> None:
    with pytest.raises(UserError, match="give --instance, --max-num-seqs"):
        read_result(write(tmp_path, VLLM), replace(DEPLOYED, instance=None, sequences=None))


@pytest.mark.parametrize(
    "document", [[], {}, {"benchmarks": []}, {"benchmarks": [{}]}, {"stages": [3]}, 1, "x"]
)
def test_other_files_are_refused(tmp_path, document) -> None:
    with pytest.raises(UserError):
        read_result(write(tmp_path, document), DEPLOYED)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*VLLM, "benchmarks"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*VLLM, "benchmarks", "stages"]), JSON))
@settings(max_examples=60)
def test_whatever_a_result_holds_it_is_read_or_refused(tmp_path_factory, changes) -> None:
    path = tmp_path_factory.mktemp("result") / "r.json"
    path.write_text(json.dumps(VLLM | changes))
    with suppress(UserError):
        assert read_result(path, DEPLOYED)
