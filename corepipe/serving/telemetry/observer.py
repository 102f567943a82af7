"""Measurements while a model serves: of requests and constraints, and the figures of its engine.

A request passes this module alone; `metrics` and `neuron_metrics` export what it counts when a scraper comes.

Times under vLLM's names are the server's own, as clients see them under any clock.  Times that the emulated
device would have taken have names of corepipe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from corepipe.engine.messages import Output, Stats
from corepipe.serving.telemetry.lateness import Lateness
from corepipe.structured.constraints import KINDS, Kind

if TYPE_CHECKING:  # heavy
    from corepipe.engine.config import EngineConfig

# Bucket bounds are vLLM's, so that its dashboards and recording rules fit.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
FIRST_TOKEN_LONG = (*FIRST_TOKEN, 80, 160, 640, 2560)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
# Grammars are compiled in milliseconds, and masks of most tokens filled in microseconds.
GRAMMAR = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
MASK = (5e-6, 1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
# Emulated devices answer faster than 10 ms a token: finer bounds below vLLM's.
DEVICE_PER_TOKEN = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, *PER_TOKEN)

WINDOW_SECONDS = 5.0
"""The window of the gauges, equal to neuron-monitor's default period."""

STEP_SECONDS = 0.25
"""The smallest distance of kept readings; a later one within it replaces the earlier one."""


MOST_STEPS = 8192
"""The most latencies of steps that are kept."""

Value = TypeVar("Value")

REASONS = ("stop", "length", "abort", "error")
ANSWERED = frozenset({"stop", "length"})

REFUSALS: Mapping[str, str] = {
    "invalid_value": "invalid",
    "unsupported_value": "unsupported",
    "request_too_complex": "too_complex",
    "rate_limit_exceeded": "busy",
}
"""The label of a refused constraint, by the code of its error."""


class Histogram:
    """Counts values by bucket without a lock, which is far cheaper: this server has one event loop."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Exports the counts as one series of `family`."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts: Iterable[float] = accumulate(self._counts)
        family.add_metric(labels, list(zip(names, counts, strict=True)), self._sum)

    def family(self, name: str, what: str, labels: Mapping[str, str]) -> Metric:
        """Exports the counts as a family of one series."""
        family = HistogramMetricFamily(name, what, labels=tuple(labels))
        self.add_to(family, tuple(labels.values()))
        return family


@dataclass(frozen=True, slots=True)
class CounterChange(Generic[Value]):
    """Two readings of counters that are `apart` seconds from each other.

    `passed` is the part of the window that they cover, in seconds, where each change of the counters is read
    at once.
    """

    before: Value
    after: Value
    apart: float
    passed: float


class History(Generic[Value]):
    """Keeps as many readings of counters as the window needs."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Value]] = deque()

    def add(self, now: float, value: Value) -> None:
        """Adds the latest reading."""
        if len(self._kept) > 1 and now - self._kept[-2][0] < STEP_SECONDS:
            self._kept.pop()
        self._kept.append((now, value))
        self._forget(now)

    def clear(self) -> None:
        """Forgets all readings: the counters have started anew."""
        self._kept.clear()

    def change(self, now: float) -> CounterChange[Value] | None:
        """Returns the change over the window that ends at `now`; None where there is only one reading."""
        self._forget(now)
        if len(self._kept) < 2:
            return None
        (began, before), (ended, after) = self._kept[0], self._kept[-1]
        return CounterChange(before, after, ended - began, min(now - began, WINDOW_SECONDS))

    def _forget(self, now: float) -> None:
        """Drops the readings before the one that was valid when the window began."""
        while len(self._kept) > 1 and self._kept[1][0] <= now - WINDOW_SECONDS:
            self._kept.popleft()


def token_bounds(largest: int) -> tuple[int, ...]:
    """Returns the bounds 1, 2, 5, 10, ... up to `largest`."""
    steps = (mantissa * 10**power for power in range(10) for mantissa in (1, 2, 5))
    return tuple(step for step in steps if step <= largest)


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


_SEQUENCES: Mapping[str, tuple[Sequence[float], str]] = {
    "request_time_per_output_token_seconds": (PER_TOKEN, "Mean time per token after the first."),
    "e2e_request_latency_seconds": (REQUEST, "Time from a request to its end."),
    "request_queue_time_seconds": (REQUEST, "Time in the queue."),
    "request_prefill_time_seconds": (REQUEST, "Time from the first batch to the first token."),
    "request_decode_time_seconds": (REQUEST, "Time from the first token to the last."),
    "request_inference_time_seconds": (REQUEST, "Time from the first batch to the last token."),
    "request_prompt_tokens": ((), "Prompt tokens of a request."),
    "request_generation_tokens": ((), "Tokens generated for a request."),
    "request_max_num_generation_tokens": ((), "Most tokens generated for a choice of a request."),
    "request_params_max_tokens": ((), "max_tokens of a request."),
    "request_params_n": (CHOICES, "n of a request."),
    "request_num_preemptions": (PREEMPTIONS, "Preemptions of a request."),
    "request_prefill_kv_computed_tokens": (
        (),
        "Prompt tokens computed, without those from the prefix cache.",
    ),
}
"""Bounds and help of the histograms of sequences; no bounds: numbers of tokens, up to the longest request."""

_DEVICE: Mapping[str, tuple[Sequence[float], str]] = {
    "time_to_first_token_seconds": (FIRST_TOKEN, "Time to the first token"),
    "time_per_output_token_seconds": (DEVICE_PER_TOKEN, "Time per token"),
    "queue_time_seconds": (FIRST_TOKEN_LONG, "Time in the queue"),
    "prefill_time_seconds": (FIRST_TOKEN_LONG, "Time from the first batch to the first token"),
    "decode_time_seconds": (FIRST_TOKEN_LONG, "Time from the first token to the last"),
    "inference_time_seconds": (FIRST_TOKEN_LONG, "Time from the first batch to the last token"),
}
"""The same of the times that the emulated device would have taken."""

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


class RequestMetrics:
    """Histograms of answered sequences; a refused one took no time and has no size.

    The times of first tokens and gaps between tokens count in any case, however their sequence ended.  Models
    that generate nothing are not in the histograms of tokens.
    """

    def __init__(self, longest: int) -> None:
        self.time_to_first_token = Histogram(FIRST_TOKEN_LONG)
        self.inter_token_latency = Histogram(PER_TOKEN)
        tokens = token_bounds(longest)
        self._sequences = {name: Histogram(bounds or tokens) for name, (bounds, _) in _SEQUENCES.items()}
        self._device = {name: Histogram(bounds) for name, (bounds, _) in _DEVICE.items()}
        self._reasons = dict.fromkeys(REASONS, 0)
        self._rejections = 0

    def finish(self, parts: Sequence[FinishedSequence]) -> None:
        """Counts the sequences of a request when all have ended: `n` of each prompt, prompt by prompt."""
        self._rejections += any(part.last and part.last.error_kind == "overloaded" for part in parts)
        for part in parts:
            self._reasons[part.reason if part.reason in self._reasons else "error"] += 1
            if part.answered:
                _observe(self._sequences, _seen(part), part.generates)
                _observe(self._device, _on_device(part), part.generates)
        n = parts[0].n
        for choices in (parts[at : at + n] for at in range(0, len(parts), n)):
            if all(choice.answered for choice in choices):
                self._sequences["request_params_n"].observe(n)
                if any(choice.generates for choice in choices):
                    most = max(choice.generated_tokens for choice in choices)
                    self._sequences["request_max_num_generation_tokens"].observe(most)

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
        labels = {"model_name": model}
        first, gap = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
        yield self.time_to_first_token.family(first, "Time from a request to its first token.", labels)
        yield self.inter_token_latency.family(gap, "Time from one token to the next.", labels)
        for name, histogram in self._sequences.items():
            yield histogram.family(f"vllm:{name}", _SEQUENCES[name][1], labels)

    def device_families(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        """Yields the times that the emulated device would have taken; `labels` say that it is emulated."""
        for name, histogram in self._device.items():
            what = f"{_DEVICE[name][1]} as the emulated device would have taken."
            yield histogram.family(f"corepipe_device_{name}", what, labels)


def _observe(
    histograms: Mapping[str, Histogram], values: Mapping[str, float | None], generates: bool
) -> None:
    for name, value in values.items():
        if value is not None and (generates or name not in _OF_TOKENS):
            histograms[name].observe(value)


def _seen(part: FinishedSequence) -> dict[str, float | None]:
    decoding, gaps = part.decoding_seconds, part.generated_tokens - 1
    return {
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


def _on_device(part: FinishedSequence) -> dict[str, float | None]:
    times = part.last.device if part.last else None
    if times is None:
        return {}
    queue, first, total = times.time_in_queue_ms, times.time_to_first_token_ms, times.total_ms
    each = times.time_per_output_token_ms
    return {
        "queue_time_seconds": queue / 1e3,
        "prefill_time_seconds": (first - queue) / 1e3,
        "decode_time_seconds": (total - first) / 1e3,
        "inference_time_seconds": (total - queue) / 1e3,
        "time_to_first_token_seconds": first / 1e3,
        "time_per_output_token_seconds": None if each is None else each / 1e3,
    }


class ConstraintMetrics:
    """Counts constrained requests, whatever their `n`; a refused one does not count for its kind."""

    def __init__(self) -> None:
        self._kinds = dict.fromkeys(KINDS, 0)
        self._refusals = dict.fromkeys(REFUSALS.values(), 0)
        self.check_seconds = Histogram(FIRST_TOKEN)
        """The times of checks whose results were not remembered."""
        self.compile_seconds = Histogram(GRAMMAR)
        self.mask_seconds = Histogram(MASK)

    def taken(self, kind: Kind) -> None:
        self._kinds[kind] += 1

    def refused(self, code: str) -> None:
        self._refusals[REFUSALS.get(code, "invalid")] += 1

    def families(self, model: str) -> Iterator[Metric]:
        for name, what, label, counts in (
            ("constrained_requests", "Requests whose answers are held to a constraint.", "kind", self._kinds),
            ("constraint_refusals", "Requests refused for their constraint.", "reason", self._refusals),
        ):
            family = CounterMetricFamily(f"corepipe_{name}", what, labels=("model_name", label))
            for value, count in counts.items():
                family.add_metric((model, value), count)
            yield family
        check = "Seconds from a constraint to its checked grammar, where it was not remembered."
        compiled = "Seconds to compile a grammar that the engine does not know."
        mask = "Seconds to fill a token's mask, while its batch is computed."
        for name, what, times in (
            ("check", check, self.check_seconds),
            ("compile", compiled, self.compile_seconds),
            ("mask", mask, self.mask_seconds),
        ):
            yield times.family(f"corepipe_grammar_{name}_seconds", what, {"model_name": model})


class Observer:
    """Counts all that happens to a model's requests, and keeps the latest figures of its engine.

    latest, histories: the Stats of each replica.  steps: when the latest steps were reported, and their
    seconds on the device and in all.  now: the clock, in seconds.
    """

    def __init__(self, config: EngineConfig, now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self.requests = RequestMetrics(config.max_model_len or 2**17)
        self.constraints = ConstraintMetrics()
        self.lateness = Lateness(config.time_scale)
        self.iteration_tokens = Histogram(ITERATION)
        self.latest: dict[int, Stats] = {}
        self.histories: dict[int, History[Stats]] = {}
        self.steps: deque[tuple[float, float, float]] = deque(maxlen=MOST_STEPS)

    def take(self, stats: Stats) -> None:
        """Takes the figures of a replica; called with every Stats, once."""
        now, before = self.now(), self.latest.get(stats.replica)
        history = self.histories.setdefault(stats.replica, History())
        if before is not None and stats.steps < before.steps:  # another engine
            history.clear()
        self.latest[stats.replica] = stats
        history.add(now, stats)
        self.steps.extend((now, *seconds) for seconds in stats.step_seconds)
        for tokens in stats.iteration_tokens:
            self.iteration_tokens.observe(tokens)
        for seconds in stats.compile_seconds:
            self.constraints.compile_seconds.observe(seconds)
        for seconds in stats.mask_seconds:
            self.constraints.mask_seconds.observe(seconds)
        if stats.paces:
            self.lateness.take(stats)
