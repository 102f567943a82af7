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
    metrics.finish(
        [
            FinishedSequence(
                reason="stop",
                prompt_tokens=12,
                cached_tokens=0,
                generated_tokens=0,
                max_tokens=0,
                generates=False,
                n=1,
                seconds=0.02,
                queue_seconds=0.005,
                prefill_seconds=0.01,
                first_token_seconds=None,
                decoding_seconds=None,
                last=Output("a", finish_reason="stop", device=times, values=b"0000"),
            )
        ]
    )
    assert counts(metrics) == dict.fromkeys(
        (
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_inference_time_seconds",
            "vllm:request_prompt_tokens",
            "vllm:request_params_n",
            "vllm:request_num_preemptions",
            "vllm:request_prefill_kv_computed_tokens",
            "corepipe_device_queue_time_seconds",
            "corepipe_device_prefill_time_seconds",
            "corepipe_device_inference_time_seconds",
        ),
        1.0,
    )
