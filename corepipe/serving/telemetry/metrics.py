"""One registry for every name: vLLM's where the meaning is the same, `corepipe_` for the emulated device.

Nothing is counted per token but the gap between two of them.  Gauges and counters of the engine are read from
its latest Stats when Prometheus asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corepipe.neuron.catalog import instance as find_instance
from corepipe.neuron.tables import ENGINES
from corepipe.serving.config import EngineConfig
from corepipe.serving.messages import Output, Ready, StageWork, Stats

# Bucket bounds are vLLM's, so that its dashboards and recording rules fit.
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
_FIRST_TOKEN_LONG = (*_FIRST_TOKEN, 80, 160, 640, 2560)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# Emulated devices answer faster than 10 ms a token: finer bounds below vLLM's.
_DEVICE_PER_TOKEN = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, *_PER_TOKEN)

RESTART_REASONS = ("killed", "crashed", "hung", "failed", "load")

_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts of values by bucket; far cheaper than a locked one, and this server has one event loop."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Export as one series of `family`."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts: Iterable[float] = accumulate(self._counts)
        family.add_metric(labels, list(zip(names, counts, strict=True)), self._sum)


@dataclass(frozen=True, slots=True)
class Finished:
    """One sequence that has ended.  `last` is the engine's last word, if it came: times, preemptions, device.

    `first_token_seconds` and `decoding_seconds` are the times to the first token, and from it to the last, as
    the server saw them.
    """

    reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int
    n: int
    seconds: float
    first_token_seconds: float | None
    decoding_seconds: float | None
    last: Output | None


class HasStats(Protocol):
    @property
    def stats(self) -> Sequence[Stats]: ...

    @property
    def restarts(self) -> Mapping[str, int]: ...


class Metrics(Collector):
    """Everything that `/metrics` shows, in a registry of its own."""

    def __init__(self, engine: HasStats, model: str, config: EngineConfig) -> None:
        self._engine = engine
        self._model = model
        self._config = config
        self._ready: Ready | None = None
        self.time_to_first_token = Histogram(_FIRST_TOKEN_LONG)
        self.inter_token_latency = Histogram(_PER_TOKEN)
        self.iteration_tokens = Histogram(_ITERATION)
        tokens = _token_bounds(config.max_model_len or 2**17)
        self._requests: dict[str, Histogram] = {
            "request_time_per_output_token_seconds": Histogram(_PER_TOKEN),
            "e2e_request_latency_seconds": Histogram(_REQUEST),
            "request_queue_time_seconds": Histogram(_REQUEST),
            "request_prefill_time_seconds": Histogram(_REQUEST),
            "request_decode_time_seconds": Histogram(_REQUEST),
            "request_inference_time_seconds": Histogram(_REQUEST),
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_max_num_generation_tokens": Histogram(tokens),
            "request_params_max_tokens": Histogram(tokens),
            "request_params_n": Histogram(_CHOICES),
            "request_num_preemptions": Histogram(_PREEMPTIONS),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
        }
        self._price = find_instance(config.instance).price_per_hour
        self._device_first_token = Histogram(_FIRST_TOKEN)
        self._device_per_token = Histogram(_DEVICE_PER_TOKEN)
        self._reasons = dict.fromkeys(_REASONS, 0)
        self._rejections = 0
        self._cached_tokens = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        ProcessCollector("corepipe_engine", pid=self._engine_pid, registry=self.registry)

    def set_ready(self, ready: Ready) -> None:
        """The engine has loaded: show the size of its cache."""
        self._ready = ready

    def observe_iterations(self, stats: Stats) -> None:
        """Count the batch sizes that came with `stats`; to be told of every Stats, once."""
        for tokens in stats.iteration_tokens:
            self.iteration_tokens.observe(tokens)

    def finish(self, request: Finished) -> None:
        """Count a sequence that has ended, in whatever way."""
        self._reasons[request.reason if request.reason in self._reasons else "error"] += 1
        self._cached_tokens += request.cached_tokens
        seen: dict[str, float] = {
            "e2e_request_latency_seconds": request.seconds,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated_tokens,
            "request_max_num_generation_tokens": request.generated_tokens,
            "request_params_max_tokens": request.max_tokens,
            "request_params_n": request.n,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached_tokens,
        }
        if request.decoding_seconds is not None and request.generated_tokens > 1:
            per_token = request.decoding_seconds / (request.generated_tokens - 1)
            seen["request_time_per_output_token_seconds"] = per_token
        for name, value in seen.items():
            self._requests[name].observe(value)
        if request.last is not None:
            self._finish_engine(request.last)

    def collect(self) -> Iterator[Metric]:
        """All families; called by the registry."""
        yield from self._engine_families()
        yield self._restarts()
        yield from self._request_families()
        yield from self._device_families()
        if self._ready is not None:
            yield self._cache_config(self._ready)

    def _engine_pid(self) -> str:
        """Where /proc has the engine's process; nowhere while there is none."""
        return str(self._ready.pid) if self._ready and self._ready.pid else "none"

    def _finish_engine(self, last: Output) -> None:
        if last.error_kind == "overloaded":
            self._rejections += 1
        if last.finish_reason in ("error", "abort"):
            return
        self._requests["request_queue_time_seconds"].observe(last.queue_seconds)
        self._requests["request_prefill_time_seconds"].observe(last.prefill_seconds)
        self._requests["request_decode_time_seconds"].observe(last.decode_seconds)
        self._requests["request_inference_time_seconds"].observe(last.prefill_seconds + last.decode_seconds)
        self._requests["request_num_preemptions"].observe(last.preemptions)
        if last.device is not None:
            self._device_first_token.observe(last.device.time_to_first_token_ms / 1e3)
            if last.device.time_per_output_token_ms is not None:
                self._device_per_token.observe(last.device.time_per_output_token_ms / 1e3)

    def _engine_families(self) -> Iterator[Metric]:
        for name, help_text, read in _ENGINE_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=("model_name", "engine"))
            for stats in self._engine.stats:
                gauge.add_metric((self._model, str(stats.replica)), read(stats))
            yield gauge
        for name, help_text, read in _ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, help_text, labels=("model_name", "engine"))
            for stats in self._engine.stats:
                counter.add_metric((self._model, str(stats.replica)), read(stats))
            yield counter

    def _restarts(self) -> Metric:
        family = CounterMetricFamily(
            "corepipe_engine_restarts", "Engines that were lost and replaced, by reason.", labels=("reason",)
        )
        for reason in RESTART_REASONS:
            family.add_metric((reason,), self._engine.restarts.get(reason, 0))
        return family

    def _request_families(self) -> Iterator[Metric]:
        reasons = CounterMetricFamily(
            "vllm:request_success", "Requests ended, by reason.", labels=("model_name", "finished_reason")
        )
        for reason, count in self._reasons.items():
            reasons.add_metric((self._model, reason), count)
        yield reasons
        rejections = CounterMetricFamily(
            "vllm:admission_rejections", "Requests refused by a full queue.", labels=("model_name", "reason")
        )
        rejections.add_metric((self._model, "queue_full"), self._rejections)
        yield rejections
        cached = CounterMetricFamily(
            "vllm:prompt_tokens_cached", "Prompt tokens from the prefix cache.", labels=("model_name",)
        )
        cached.add_metric((self._model,), self._cached_tokens)
        yield cached
        own = {
            "time_to_first_token_seconds": self.time_to_first_token,
            "inter_token_latency_seconds": self.inter_token_latency,
            "iteration_tokens_total": self.iteration_tokens,
        }
        for name, histogram in (own | self._requests).items():
            yield _histogram(f"vllm:{name}", _HELP[name], histogram, {"model_name": self._model})

    def _device_families(self) -> Iterator[Metric]:
        fixed = {"device": self._config.instance, "emulated": "true"}
        labels = ("device", "emulated", "engine")
        for name, help_text, read in _DEVICE_COUNTERS:
            family = CounterMetricFamily(name, help_text, labels=labels)
            for stats in self._engine.stats:
                family.add_metric((*fixed.values(), str(stats.replica)), read(stats))
            yield family
        yield from self._core_families(fixed)
        price = GaugeMetricFamily("corepipe_device_dollars_per_hour", _PRICE, labels=tuple(fixed))
        if self._price is not None:
            price.add_metric(tuple(fixed.values()), self._price)
        yield price
        first, per_token = "time_to_first_token_seconds", "time_per_output_token_seconds"
        told = "as the emulated device would have taken."
        for name, help_text, histogram in (
            (first, f"Time to the first token {told}", self._device_first_token),
            (per_token, f"Time per token {told}", self._device_per_token),
        ):
            yield _histogram(f"corepipe_device_{name}", help_text, histogram, fixed)

    def _core_families(self, fixed: Mapping[str, str]) -> Iterator[Metric]:
        labels = (*fixed, "engine", "core")
        families = [CounterMetricFamily(name, what, labels=labels) for name, what, _ in _CORE_COUNTERS]
        engines = CounterMetricFamily(
            "corepipe_core_engine_busy_seconds",
            "Emulated seconds in which an engine of a NeuronCore worked, estimated from one step in many.",
            labels=(*labels, "unit"),
        )
        for stats in self._engine.stats:
            for core, busy in enumerate(stats.core_busy_seconds):
                values = (*fixed.values(), str(stats.replica), str(core))
                work = stats.stage_work(core)
                for family, (_, _, read) in zip(families, _CORE_COUNTERS, strict=True):
                    family.add_metric(values, read(busy, work))
                for unit, seconds in zip(ENGINES, work.engine_seconds, strict=False):
                    engines.add_metric((*values, unit), seconds)
        yield from (*families, engines)

    def _cache_config(self, ready: Ready) -> Metric:
        labels = {
            "model_name": self._model,
            "block_size": str(ready.block_size),
            "num_gpu_blocks": str(ready.blocks),
            "cache_dtype": "float32" if self._config.format == "fp32" else "bfloat16",
            "enable_prefix_caching": str(self._config.prefix_cache),
        }
        names = (*labels, "engine")
        family = GaugeMetricFamily("vllm:cache_config_info", "Size of a replica's KV cache.", labels=names)
        for replica in [str(stats.replica) for stats in self._engine.stats] or ["0"]:
            family.add_metric((*labels.values(), replica), 1)
        return family


def _histogram(name: str, help_text: str, histogram: Histogram, labels: Mapping[str, str]) -> Metric:
    family = HistogramMetricFamily(name, help_text, labels=tuple(labels))
    histogram.add_to(family, tuple(labels.values()))
    return family


def _token_bounds(largest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to `largest`."""
    steps = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return tuple(step for step in steps if step <= largest)


_ENGINE_GAUGES: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("vllm:num_requests_running", "Requests in the batch.", lambda s: s.running),
    ("vllm:num_requests_waiting", "Requests in the queue.", lambda s: s.waiting),
    (
        "vllm:kv_cache_usage_perc",
        "Share of KV blocks held by requests, 0 to 1.",
        lambda s: s.blocks_held / s.blocks_total if s.blocks_total else 0.0,
    ),
    ("corepipe_waiting_tokens", "Prompt tokens in the queue.", lambda s: s.waiting_tokens),
    ("corepipe_kv_blocks_held", "KV blocks held by requests.", lambda s: s.blocks_held),
    ("corepipe_kv_blocks_cached", "KV blocks kept by the prefix cache alone.", lambda s: s.blocks_cached),
    ("corepipe_kv_blocks", "KV blocks in all.", lambda s: s.blocks_total),
)

_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    ("vllm:prompt_tokens", "Prompt tokens of requests with a first token.", lambda s: s.prompt_tokens),
    ("vllm:generation_tokens", "Tokens generated.", lambda s: s.generation_tokens),
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", lambda s: s.prefix_queries),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", lambda s: s.prefix_hits),
    ("vllm:num_preemptions", "Requests that had to give up their KV blocks.", lambda s: s.preemptions),
    (
        "corepipe_overflows",
        "Requests that ended with an error, as their logits overflowed.",
        lambda s: s.overflows,
    ),
    ("corepipe_steps", "Batches computed.", lambda s: s.steps),
    ("corepipe_host_busy_seconds", "Seconds in which the host computed.", lambda s: s.host_busy_seconds),
)

_DEVICE_COUNTERS: tuple[tuple[str, str, Callable[[Stats], float]], ...] = (
    (
        "corepipe_device_busy_seconds",
        "Emulated seconds in which the device computed.",
        lambda s: s.device_busy_seconds,
    ),
    (
        "corepipe_device_seconds",
        "Emulated seconds since the device started.",
        lambda s: s.device_now_seconds,
    ),
    (
        "corepipe_late_steps",
        "Steps that the host finished later than the emulated device would have.",
        lambda s: s.late_steps,
    ),
)

_CORE_COUNTERS: tuple[tuple[str, str, Callable[[float, StageWork], float]], ...] = (
    (
        "corepipe_core_busy_seconds",
        "Emulated seconds in which a NeuronCore computed.",
        lambda busy, _: busy,
    ),
    (
        "corepipe_core_flops",
        "Floating-point operations of a NeuronCore, estimated from one step in many.",
        lambda _, work: work.flops,
    ),
    (
        "corepipe_core_memory_traffic_bytes",
        "Bytes to and from device memory of a NeuronCore, estimated from one step in many.",
        lambda _, work: work.memory_bytes,
    ),
)

_PRICE = "List price of the emulated instance, in dollars an hour; none where it has no published one."

_HELP: Mapping[str, str] = {
    "time_to_first_token_seconds": "From the request to its first token.",
    "inter_token_latency_seconds": "From one token to the next.",
    "iteration_tokens_total": "Tokens in a batch.",
    "request_time_per_output_token_seconds": "Mean time per token after the first.",
    "e2e_request_latency_seconds": "From the request to its end.",
    "request_queue_time_seconds": "Time in the queue.",
    "request_prefill_time_seconds": "From the first batch to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_inference_time_seconds": "From the first batch to the last token.",
    "request_prompt_tokens": "Prompt tokens of a request.",
    "request_generation_tokens": "Tokens generated for a request.",
    "request_max_num_generation_tokens": "Most tokens generated for a choice of a request.",
    "request_params_max_tokens": "max_tokens of a request.",
    "request_params_n": "n of a request.",
    "request_num_preemptions": "Preemptions of a request.",
    "request_prefill_kv_computed_tokens": "Prompt tokens computed, without those from the prefix cache.",
}
