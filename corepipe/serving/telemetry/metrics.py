"""One registry for every name: vLLM's where the meaning is the same, `corepipe_` for the emulated device.

Only the gap between two tokens is counted per token.  Gauges and counters of the engine are read from its
latest Stats when Prometheus scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Protocol

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corepipe.engine.config import EngineConfig
from corepipe.engine.lora import AdapterRef
from corepipe.engine.messages import Ready, StageWork, Stats
from corepipe.neuron.chips.catalog import instance as find_instance
from corepipe.neuron.chips.hardware import ENGINES
from corepipe.serving.telemetry.observer import Observer

RESTART_REASONS = ("killed", "crashed", "hung", "failed", "load")
"""The reasons for restarts of an engine; a fleet has others besides."""


class HasStats(Protocol):
    @property
    def stats(self) -> Sequence[Stats]: ...

    @property
    def restarts(self) -> Mapping[str, int]: ...

    @property
    def refusals(self) -> Mapping[tuple[str, str], int]: ...

    @property
    def adapters_in_use(self) -> tuple[Set[AdapterRef], Set[AdapterRef]]: ...


class Metrics(Collector):
    """All metrics of a model at `/metrics`."""

    def __init__(self, engine: HasStats, model: str, config: EngineConfig, observer: Observer) -> None:
        self._engine = engine
        self._observer = observer
        self._model = model
        self._config = config
        self._ready: Ready | None = None
        self._price = find_instance(config.instance).price_per_hour
        self._process = ProcessCollector("corepipe_engine", pid=self._engine_pid, registry=None)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """This collector, and that of the engine's process."""
        return self, self._process

    def set_ready(self, ready: Ready) -> None:
        """Notes that the engine has loaded, to export the size of its cache."""
        self._ready = ready

    def rest(self) -> None:
        """Notes that the engine has ended, and its cache with it."""
        self._ready = None

    def collect(self) -> Iterator[Metric]:
        """Yields all families; called by the registry."""
        yield from self._server_families()
        yield from self._engine_families()
        yield self._restarts()
        yield from self._fleet()
        yield from self._observer.requests.families(self._model)
        yield from self._observer.constraints.families(self._model)
        yield self._observer.iteration_tokens.family(
            "vllm:iteration_tokens_total", "Tokens in a batch.", {"model_name": self._model}
        )
        yield from self._device_families()
        yield self._adapters()
        if self._ready is not None:
            yield self._cache_config(self._ready)

    def _engine_pid(self) -> str:
        """Returns the entry of the engine's process in /proc; one that does not exist while there is none."""
        return str(self._ready.pid) if self._ready and self._ready.pid else "none"

    def _server_families(self) -> Iterator[Metric]:
        """Yields families of one series over all replicas: endpoint pickers read only the first series."""
        stats = self._engine.stats
        for name, help_text, read in _SERVER_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=("model_name", "engine"))
            if stats:
                gauge.add_metric((self._model, self._engines()), read(stats))
            yield gauge

    def _engines(self) -> str:
        """Returns the label `engine` of figures over all replicas; with a single replica its number."""
        stats = self._engine.stats
        return ALL_REPLICAS if len(stats) > 1 else str(stats[0].replica) if stats else "0"

    def _engine_families(self) -> Iterator[Metric]:
        for name, help_text, field in _ENGINE_GAUGES:
            gauge = GaugeMetricFamily(name, help_text, labels=("model_name", "engine"))
            for stats in self._engine.stats:
                gauge.add_metric((self._model, str(stats.replica)), getattr(stats, field))
            yield gauge
        for name, help_text, field in _ENGINE_COUNTERS:
            counter = CounterMetricFamily(name, help_text, labels=("model_name", "engine"))
            for stats in self._engine.stats:
                counter.add_metric((self._model, str(stats.replica)), getattr(stats, field))
            yield counter
        labels = ("model_name", "engine")
        what = "Requests in the queue, by what they wait for."
        waiting = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", what, labels=(*labels, "reason"))
        what = "Prompt tokens of requests with a first token, by where they came from."
        prompts = CounterMetricFamily("vllm:prompt_tokens_by_source", what, labels=(*labels, "source"))
        for stats in self._engine.stats:
            for family, parts in ((waiting, _WAITING), (prompts, _SOURCES)):
                for part, read in parts.items():
                    family.add_metric((self._model, str(stats.replica), part), read(stats))
        yield from (waiting, prompts, self._accepted())

    def _accepted(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens that were accepted, by their position in the draft.",
            labels=("model_name", "engine", "position"),
        )
        for stats in self._engine.stats:
            for position, accepted in enumerate(stats.accepted_per_position):
                family.add_metric((self._model, str(stats.replica), str(position)), accepted)
        return family

    def _restarts(self) -> Metric:
        family = CounterMetricFamily(
            "corepipe_engine_restarts", "Engines that were lost and replaced, by reason.", labels=("reason",)
        )
        restarts = self._engine.restarts
        for reason in dict.fromkeys((*RESTART_REASONS, *restarts)):
            family.add_metric((reason,), restarts.get(reason, 0))
        return family

    def _fleet(self) -> Iterator[Metric]:
        hosts = GaugeMetricFamily(
            "corepipe_fleet_host_serving",
            "1 for a host of the fleet that takes requests, 0 for one that is away or drained.",
            labels=("host", "node"),
        )
        for host in self._ready.placement.get("hosts", ()) if self._ready is not None else ():
            hosts.add_metric((host["name"], host["node"]), host["state"] == "serving")
        refusals = CounterMetricFamily(
            "corepipe_fleet_refusals",
            "Connections and messages refused by a machine of a fleet (or the front), by machine and reason.",
            labels=("node", "reason"),
        )
        for (node, reason), count in self._engine.refusals.items():
            refusals.add_metric((node, reason), count)
        yield from (hosts, refusals)

    def _device_families(self) -> Iterator[Metric]:
        fixed = {"device": self._config.instance, "emulated": "true"}
        labels = ("device", "emulated", "engine")
        for name, help_text, field in _DEVICE_COUNTERS:
            family = CounterMetricFamily(name, help_text, labels=labels)
            for stats in self._engine.stats:
                family.add_metric((*fixed.values(), str(stats.replica)), getattr(stats, field))
            yield family
        yield from self._core_families(fixed)
        price = GaugeMetricFamily("corepipe_device_dollars_per_hour", _PRICE, labels=tuple(fixed))
        if self._price is not None:
            price.add_metric(tuple(fixed.values()), self._price)
        yield price
        verdict = self._observer.lateness.verdict
        for name, what, value in (
            ("corepipe_device_times_valid", _VALID, float(verdict.valid)),
            ("corepipe_time_scale_needed", _NEEDED, verdict.time_scale_needed),
        ):
            gauge = GaugeMetricFamily(name, what, labels=tuple(fixed))
            gauge.add_metric(tuple(fixed.values()), value)
            yield gauge
        yield from self._observer.requests.device_families(fixed)

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

    def _adapters(self) -> Metric:
        """Makes the family of the LoRA adapters in use.  Pickers ask for it in any case; of several series
        they take the one with the highest value, its time in seconds since 1970."""
        most = self._config.lora_slots
        running, waiting = self._engine.adapters_in_use if most else (set[AdapterRef](), set[AdapterRef]())
        labels = {
            "max_lora": str(most),
            "waiting_lora_adapters": _names(waiting),
            "running_lora_adapters": _names(running),
        }
        family = GaugeMetricFamily("vllm:lora_requests_info", _ADAPTERS, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), time.time())
        return family

    def _cache_config(self, ready: Ready) -> Metric:
        labels = {
            "model_name": self._model,
            "block_size": str(ready.block_size),
            "num_gpu_blocks": str(ready.blocks * max(1, len(self._engine.stats))),
            "cache_dtype": "float32" if self._config.format == "fp32" else "bfloat16",
            "enable_prefix_caching": str(self._config.prefix_cache),
            "engine": self._engines(),
        }
        what = "Size of the KV cache, of all replicas together."
        family = GaugeMetricFamily("vllm:cache_config_info", what, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family


def _names(adapters: Set[AdapterRef]) -> str:
    return ",".join(sorted({one.name for one in adapters}))


ALL_REPLICAS = "all"
"""The label `engine` of figures over several replicas."""


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_SERVER_GAUGES: tuple[tuple[str, str, Callable[[Sequence[Stats]], float]], ...] = (
    (
        "vllm:num_requests_running",
        "Requests in the batch, of all replicas.",
        lambda all_: sum(s.running for s in all_),
    ),
    (
        "vllm:num_requests_waiting",
        "Requests in the queue, of all replicas.",
        lambda all_: sum(s.waiting for s in all_),
    ),
    (
        "vllm:kv_cache_usage_perc",
        "Share of the KV blocks of all replicas that is held by requests, 0 to 1.",
        lambda all_: _share(sum(s.blocks_held for s in all_), sum(s.blocks_total for s in all_)),
    ),
)
"""Gauges over all replicas: see docs/decisions/2026-11-24-metrics-of-all-replicas.md."""


_ENGINE_GAUGES: Sequence[tuple[str, str, str]] = (
    ("corepipe_requests_running", "Requests in a replica's batch.", "running"),
    ("corepipe_requests_waiting", "Requests in a replica's queue.", "waiting"),
    ("corepipe_waiting_tokens", "Prompt tokens in the queue.", "waiting_tokens"),
    ("corepipe_kv_blocks_held", "KV blocks held by requests.", "blocks_held"),
    ("corepipe_kv_blocks_cached", "KV blocks kept by the prefix cache alone.", "blocks_cached"),
    ("corepipe_kv_blocks", "KV blocks in all.", "blocks_total"),
)

_ENGINE_COUNTERS: Sequence[tuple[str, str, str]] = (
    ("vllm:prompt_tokens", "Prompt tokens of requests with a first token.", "prompt_tokens"),
    (
        "vllm:prompt_tokens_cached",
        "Prompt tokens of requests with a first token, from the prefix cache.",
        "prompt_tokens_cached",
    ),
    ("vllm:generation_tokens", "Tokens generated.", "generation_tokens"),
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests that had to give up their KV blocks.", "preemptions"),
    (
        "corepipe_overflows",
        "Requests that ended with an error because values of the model overflowed.",
        "overflows",
    ),
    (
        "corepipe_constraint_failures",
        "Requests that ended with an error because no continuation fitted their grammar.",
        "constraint_failures",
    ),
    ("vllm:spec_decode_num_drafts", "Drafts of the next tokens of an answer.", "drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens in drafts.", "draft_tokens"),
    ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted.", "accepted_tokens"),
    ("corepipe_steps", "Batches computed.", "steps"),
    (
        "corepipe_padded_tokens",
        "Rows that the device computed beside those of tokens, in graphs of fixed sizes, where nothing is "
        "generated.",
        "padded_tokens",
    ),
    ("corepipe_host_busy_seconds", "Seconds in which the host computed.", "host_busy_seconds"),
)

_WAITING: Mapping[str, Callable[[Stats], float]] = {
    "capacity": lambda s: s.waiting - s.held,
    "deferred": lambda s: s.held,
}
"""vLLM's reasons: here requests wait for a place in the batch or for blocks, or for their grammar."""

_SOURCES: Mapping[str, Callable[[Stats], float]] = {
    "local_compute": lambda s: s.prompt_tokens - s.prompt_tokens_cached,
    "local_cache_hit": lambda s: s.prompt_tokens_cached,
    "external_kv_transfer": lambda _: 0,
}
"""vLLM's sources: here keys and values never come from another server."""

_DEVICE_COUNTERS: Sequence[tuple[str, str, str]] = (
    ("corepipe_device_busy_seconds", "Emulated seconds in which the device computed.", "device_busy_seconds"),
    ("corepipe_device_seconds", "Emulated seconds since the device started.", "device_now_seconds"),
    (
        "corepipe_late_steps",
        "Steps that the host finished later than the emulated device would have.",
        "late_steps",
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

_ADAPTERS = "LoRA adapters of requests that wait and that run, separated by commas; the value is the time."
_VALID = "1 where the host keeps the device's pace; 0: emulated figures, and latencies, are the host's."
_NEEDED = "Host seconds for one of the device, with which the host would keep up."
_PRICE = "List price of the emulated instance, in dollars an hour; none where it has no published one."
