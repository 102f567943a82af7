"""The histograms that count a sequence."""

from __future__ import annotations

from corepipe.engine.messages import DeviceTimes, Output
from corepipe.serving.telemetry.observer import FinishedSequence, RequestMetrics


def counts(metrics: RequestMetrics) -> dict[str, float]:
    """Returns the counts of the histograms that have any."""
    families = [*metrics.families("m"), *metrics.device_families({})]
    samples = [sample for family in families for sample in family.samples]
    return {s.name.removesuffix("_count"): s.value for s in samples if s.name.endswith("_count") and s.value}


def test_what_asks_for_no_token_is_in_no_histogram_of_tokens() -> None:
    metrics = RequestMetrics(longest=512)
    times = DeviceTimes(0.0, 1.0, 3.0, None, 3.0)
    found = {"prompt_tokens": 12, "cached_tokens": 0, "generated_tokens": 0, "max_tokens": 0, "n": 1}
    took = {"seconds": 0.02, "queue_seconds": 0.005, "prefill_seconds": 0.01, "first_token_seconds": None}
    last = Output("a", finish_reason="stop", device=times, values=b"0000")
    metrics.finish([
        FinishedSequence(reason="stop", generates=False, decoding_seconds=None, last=last, **found, **took)
    ])  # fmt: skip
    parts = ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds")
    parts += ("request_inference_time_seconds", "request_prompt_tokens", "request_params_n")
    parts += ("request_num_preemptions", "request_prefill_kv_computed_tokens")
    expected = [f"vllm:{part}" for part in parts]
    expected += [f"corepipe_device_{phase}_time_seconds" for phase in ("queue", "prefill", "inference")]
    assert counts(metrics) == dict.fromkeys(expected, 1.0)
