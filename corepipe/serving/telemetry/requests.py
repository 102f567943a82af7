"""Metrics of requests: their ends, times and sizes, for clients and on the device.

Times under vLLM's names are the server's own, as clients see them under any clock.  Times that the emulated
device would have taken have names of corepipe.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric

from corepipe.engine.messages import Output
from corepipe.serving.telemetry.histogram import (
    CHOICES,
    DEVICE_PER_TOKEN,
    FIRST_TOKEN,
    FIRST_TOKEN_LONG,
    PER_TOKEN,
    PREEMPTIONS,
    REQUEST,
    Histogram,
    token_bounds,
)

REASONS = ("stop", "length", "abort", "error")
ANSWERED = frozenset({"stop", "length"})


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A sequence that has ended.  last: the engine's last Output, if it came: preemptions, device times.

    Seconds are the host's, as the server saw them: in all and to the first token, from the request; in the
    queue; from there to the first token; and from that to the last.  None where it ended before that.
    generates: whether its model generates; otherwise its result takes the place of a first token.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    n: int
    seconds: float
    queue_seconds: float | None
    prefill_seconds: float | None
    first_token_seconds: float | None
    decoding_seconds: float | None
    last: Output | None
    generates: bool = True

    @property
    def answered(self) -> bool:
        """Tells whether it ended by itself."""
        return self.reason in ANSWERED

    @property
    def inference_seconds(self) -> float | None:
        """The time from the queue to the last token, or to the result, in seconds."""
        if not self.generates:
            return self.prefill_seconds
        if self.prefill_seconds is None or self.decoding_seconds is None:
            return None
        return self.prefill_seconds + self.decoding_seconds


class RequestMetrics:
    """Histograms of answered sequences; a refused one took no time and has no size.

    The times of first tokens and gaps between tokens count in any case, however their sequence ended.  Models
    that generate nothing are not in the histograms of tokens.
    """

    def __init__(self, longest: int) -> None:
        self.time_to_first_token = Histogram(FIRST_TOKEN_LONG)
        self.inter_token_latency = Histogram(PER_TOKEN)
        tokens = token_bounds(longest)
        self._sequences: dict[str, Histogram] = {
            "request_time_per_output_token_seconds": Histogram(PER_TOKEN),
            "e2e_request_latency_seconds": Histogram(REQUEST),
            "request_queue_time_seconds": Histogram(REQUEST),
            "request_prefill_time_seconds": Histogram(REQUEST),
            "request_decode_time_seconds": Histogram(REQUEST),
            "request_inference_time_seconds": Histogram(REQUEST),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_max_num_generation_tokens": Histogram(tokens),
            "request_params_max_tokens": Histogram(tokens),
            "request_params_n": Histogram(CHOICES),
            "request_num_preemptions": Histogram(PREEMPTIONS),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
        }
        self._device: dict[str, Histogram] = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN),
            "time_per_output_token_seconds": Histogram(DEVICE_PER_TOKEN),
            "queue_time_seconds": Histogram(FIRST_TOKEN_LONG),
            "prefill_time_seconds": Histogram(FIRST_TOKEN_LONG),
            "decode_time_seconds": Histogram(FIRST_TOKEN_LONG),
            "inference_time_seconds": Histogram(FIRST_TOKEN_LONG),
        }
        self._reasons = dict.fromkeys(REASONS, 0)
        self._rejections = 0

    def finish(self, parts: Sequence[FinishedSequence]) -> None:
        """Counts the sequences of a request when all have ended: `n` of each prompt, prompt by prompt."""
        self._rejections += any(part.last and part.last.error_kind == "overloaded" for part in parts)
        for part in parts:
            self._reasons[part.reason if part.reason in self._reasons else "error"] += 1
            if part.answered:
                _observe(self._sequences, _seen(part))
                _observe(self._device, _on_device(part))
        n = parts[0].n
        for choices in (parts[at : at + n] for at in range(0, len(parts), n)):
            if all(choice.answered for choice in choices):
                most = max(choice.generated_tokens for choice in choices)
                asked = any(choice.generates for choice in choices)
                told = most if asked else None
                of_prompt = {"request_params_n": n, "request_max_num_generation_tokens": told}
                _observe(self._sequences, of_prompt)

    def families(self, model: str) -> Iterator[Metric]:
        """Yields the families with vLLM's names."""
        reasons = CounterMetricFamily(
            "vllm:request_success", "Requests ended, by reason.", labels=("model_name", "finished_reason")
        )
        for reason, count in self._reasons.items():
            reasons.add_metric((model, reason), count)
        yield reasons
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused by a full queue.", labels=("model_name", "reason")
        )
        rejections.add_metric((model, "queue_full"), self._rejections)
        yield rejections
        tokens = {
            "time_to_first_token_seconds": self.time_to_first_token,
            "inter_token_latency_seconds": self.inter_token_latency,
        }
        for name, histogram in (tokens | self._sequences).items():
            yield histogram.family(f"vllm:{name}", _HELP[name], {"model_name": model})

    def device_families(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        """Yields the times that the emulated device would have taken; `labels` say that it is emulated."""
        for name, histogram in self._device.items():
            what = f"{_DEVICE_HELP[name]} as the emulated device would have taken."
            yield histogram.family(f"corepipe_device_{name}", what, labels)


def _observe(histograms: Mapping[str, Histogram], values: Mapping[str, float | None]) -> None:
    for name, value in values.items():
        if value is not None:
            histograms[name].observe(value)


def _seen(part: FinishedSequence) -> dict[str, float | None]:
    decoding, gaps = part.decoding_seconds, part.generated_tokens - 1
    found: dict[str, float | None] = {
        "e2e_request_latency_seconds": part.seconds,
        "request_queue_time_seconds": part.queue_seconds,
        "request_prefill_time_seconds": part.prefill_seconds,
        "request_decode_time_seconds": decoding,
        "request_inference_time_seconds": part.inference_seconds,
        "request_time_per_output_token_seconds": decoding / gaps
        if decoding is not None and gaps > 0
        else None,
        "request_prompt_tokens": part.prompt_tokens,
        "request_generation_tokens": part.generated_tokens,
        "request_params_max_tokens": part.max_tokens,
        "request_num_preemptions": part.last.preemptions if part.last else None,
        "request_prefill_kv_computed_tokens": part.prompt_tokens - part.cached_tokens,
    }
    return found if part.generates else _without(found, _OF_TOKENS)


def _without(found: dict[str, float | None], names: Collection[str]) -> dict[str, float | None]:
    return {name: value for name, value in found.items() if name not in names}


_OF_TOKENS = frozenset(
    {
        "request_time_per_output_token_seconds",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_params_max_tokens",
        "time_to_first_token_seconds",
        "time_per_output_token_seconds",
        "decode_time_seconds",
    }
)
"""Histograms only for models that generate."""


def _on_device(part: FinishedSequence) -> dict[str, float | None]:
    times = part.last.device if part.last else None
    if times is None:
        return {}
    milliseconds: dict[str, float | None] = {
        "queue_time_seconds": times.time_in_queue_ms,
        "prefill_time_seconds": times.time_to_first_token_ms - times.time_in_queue_ms,
        "decode_time_seconds": times.total_ms - times.time_to_first_token_ms,
        "inference_time_seconds": times.total_ms - times.time_in_queue_ms,
        "time_to_first_token_seconds": times.time_to_first_token_ms,
        "time_per_output_token_seconds": times.time_per_output_token_ms,
    }
    milliseconds = milliseconds if part.generates else _without(milliseconds, _OF_TOKENS)
    return {name: value if value is None else value / 1e3 for name, value in milliseconds.items()}


_HELP: Mapping[str, str] = {
    "time_to_first_token_seconds": "Time from a request to its first token.",
    "inter_token_latency_seconds": "Time from one token to the next.",
    "request_time_per_output_token_seconds": "Mean time per token after the first.",
    "e2e_request_latency_seconds": "Time from a request to its end.",
    "request_queue_time_seconds": "Time in the queue.",
    "request_prefill_time_seconds": "Time from the first batch to the first token.",
    "request_decode_time_seconds": "Time from the first token to the last.",
    "request_inference_time_seconds": "Time from the first batch to the last token.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_max_num_generation_tokens": "Most tokens generated for a choice of a request.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_params_n": "n of a request.",
    "request_num_preemptions": "Preemptions of a request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed, without those from the prefix cache.",
}

_DEVICE_HELP: Mapping[str, str] = {
    "time_to_first_token_seconds": "Time to the first token",
    "time_per_output_token_seconds": "Time per token",
    "queue_time_seconds": "Time in the queue",
    "prefill_time_seconds": "Time from the first batch to the first token",
    "decode_time_seconds": "Time from the first token to the last",
    "inference_time_seconds": "Time from the first batch to the last token",
}
