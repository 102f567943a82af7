"""The report of a run, under the keys of vLLM's benchmark, so that the same tools read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from corepipe.bench.client import GENERATING, Api
from corepipe.bench.outcome import RequestOutcome
from corepipe.bench.recorder import (
    METRICS,
    PERCENTS,
    LatencyHistogram,
    Recorder,
    mean_at_once,
    most_at_once,
)
from corepipe.bench.runner import RunSpan
from corepipe.serving.telemetry.lateness import not_valid, too_late
from corepipe.version import __version__
from corepipe.workload.slo import NO_SLO, Slo

SCHEMA = "corepipe.bench/1"
ENDPOINTS: Mapping[Api, str] = {
    "completions": "openai",
    "chat": "openai-chat",
    "embeddings": "openai-embeddings",
    "classify": "classify",
    "rerank": "vllm-rerank",
}
"""The APIs by their names in vLLM's benchmark, which has none for classes."""

LATE_SECONDS = 0.01
"""Lateness of 1 % of the requests from which on the generator's own delay distorts the server's latencies."""

BUSY = 0.8
"""Share of a core from which on the load generator itself is likely to be the bottleneck."""

FEW = 100
"""Number of requests below which the 99th percentile is the slowest of them."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a run.  workload: its settings; server: a corepipe server's placement; tokenizer: a
    local one."""

    url: str
    model: str
    api: Api
    prompts: str
    tokenizer: str | None
    workload: Mapping[str, object]
    salt: str
    slo: Slo = NO_SLO
    server: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HostEffort:
    """The load on the hosts in a run: the generator's CPU time, the server's steps and late steps.

    time_scale_needed: the time scale at which the server's host would keep the device's pace; None where it
    does, or where that is not known.
    """

    cpu_seconds: float = 0.0
    steps: int = 0
    late_steps: int = 0
    time_scale_needed: float | None = None


@dataclass(frozen=True)
class LoadReport:
    """The report of a finished run."""

    conditions: Conditions
    recorder: Recorder = field(repr=False)
    span: RunSpan
    load: HostEffort
    interrupted: bool = False

    @property
    def per_second(self) -> float:
        """Factor from a count to a rate."""
        return 1.0 / self.span.seconds if self.span.seconds > 0 else 0.0

    @property
    def generates(self) -> bool:
        """Tells whether answers were tokens; else they came whole."""
        return self.conditions.api in GENERATING

    @property
    def late(self) -> bool:
        """Tells whether latencies contain delays of the load generator itself."""
        return self.recorder.late.at(99.0) > LATE_SECONDS or self.cpu_share > BUSY

    @property
    def cpu_share(self) -> float:
        return self.load.cpu_seconds * self.per_second

    @property
    def host_is_slower(self) -> bool:
        """Tells whether a host was too slow for the device's clock: its figures are not valid."""
        return too_late(self.load.late_steps, self.load.steps)

    def document(self) -> dict[str, Any]:
        """Returns the report for programs: milliseconds, tokens, requests, seconds."""
        recorder, workload = self.recorder, self.conditions.workload
        latencies = [entry for name in METRICS for entry in _statistics(name, recorder.latencies[name])]
        return {
            **self._heading(),
            "num_prompts": len(recorder.outcomes),
            "request_rate": _rate(workload),
            "burstiness": workload.get("burstiness") or 1.0,
            "max_concurrency": workload.get("users"),
            **self._counts(),
            **dict(latencies),
            **self._load(),
            "histograms": {name: recorder.latencies[name].encoded() for name in METRICS},
        }

    def notes(self) -> Iterator[str]:
        """Yields the notes that a reader of the figures should know."""
        recorder = self.recorder
        if self.interrupted:
            yield f"interrupted: {recorder.ends['unfinished']} requests under way are not in the figures"
        for kind, times in recorder.errors.most_common():
            yield f"{times} x {kind}: {recorder.details[kind]}"
        if self.late:
            yield (
                f"the generator itself was late (99 % within {recorder.late.at(99.0) * 1e3:.1f} ms, "
                f"{self.cpu_share:.0%} of a core): its delays are in these latencies"
            )
        if self.host_is_slower:
            yield not_valid(self.load.late_steps, self.load.steps, self.load.time_scale_needed)
        completed = recorder.ends["completed"]
        if 0 < completed < FEW:
            yield f"{completed} requests: the 99th percentile is the slowest of them"
        if untimed := sum(o.end == "completed" and o.generated and o.tpot is None for o in recorder.outcomes):
            yield (
                f"{untimed} of {completed} answers have one token, or came in one piece: "
                "they have no time per token, and are left out of it"
            )
        asked = sum(o.asked_output for o in recorder.outcomes if o.end == "completed")
        if recorder.output_tokens < 0.99 * asked:
            yield f"answers have {recorder.output_tokens} of {asked} tokens: the server ends them early"

    def _heading(self) -> dict[str, Any]:
        conditions = self.conditions
        return {
            "schema": SCHEMA,
            "corepipe": __version__,
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": ENDPOINTS[conditions.api],
            "backend": ENDPOINTS[conditions.api],
            "label": None,
            "base_url": conditions.url,
            "model_id": conditions.model,
            "tokenizer_id": conditions.tokenizer,
            "prompts": conditions.prompts,
            "salt": conditions.salt,
            "workload": dict(conditions.workload),
            "interrupted": self.interrupted,
        }

    def _counts(self) -> dict[str, Any]:
        recorder, rate = self.recorder, self.per_second
        tokens = recorder.input_tokens + recorder.output_tokens
        return {
            "duration": self.span.seconds,
            **{name: recorder.ends[name] for name in ("completed", "failed", "cancelled", "unfinished")},
            "errors_by_kind": dict(recorder.errors),
            "total_input_tokens": recorder.input_tokens,
            "total_cached_tokens": recorder.cached_tokens,
            "total_output_tokens": recorder.output_tokens,
            "request_throughput": recorder.ends["completed"] * rate,
            "request_goodput": None if self.conditions.slo == NO_SLO else recorder.good * rate,
            "slo_share": None if self.conditions.slo == NO_SLO else self.good_share,
            "output_throughput": recorder.output_tokens * rate,
            "total_token_throughput": tokens * rate,
            "max_output_tokens_per_s": max(recorder.tokens_in_second.values(), default=0.0),
            "max_concurrent_requests": most_at_once(recorder.outcomes),
            "mean_concurrent_requests": mean_at_once(recorder.outcomes, self.span.seconds),
        }

    @property
    def good_share(self) -> float:
        """Share of requests that met the objectives, of those that were neither cancelled nor unfinished."""
        asked = self.recorder.ends["completed"] + self.recorder.ends["failed"]
        return self.recorder.good / asked if asked else 0.0

    def _rates(self) -> tuple[float | None, float | None]:
        """Returns the rates of requests that were due and that were sent; None where all were due at once."""
        outcomes, seconds = self.recorder.outcomes, self.span.last_due - self.span.start
        if seconds <= 0:
            return None, None
        last = max([self.span.last_due, *(outcome.sent for outcome in outcomes)])
        return len(outcomes) / seconds, len(outcomes) / (last - self.span.start)

    def _load(self) -> dict[str, Any]:
        late, device, (offered, sent) = self.recorder.late, self.recorder.device, self._rates()
        found: dict[str, Any] = {
            "offered_request_rate": offered,
            "sent_request_rate": sent,
            "mean_late_ms": late.mean * 1e3,
            "p99_late_ms": late.at(99.0) * 1e3,
            "generator_cpu_share": self.cpu_share,
            "generator_was_late": self.late,
            "host_was_late": self.host_is_slower,
        }
        if self.conditions.server is not None:
            predicted = [entry for name in device for entry in _statistics(name, device[name])]
            found["server"] = dict(self.conditions.server)
            found["device"] = {
                "emulated": True,
                "valid": not self.host_is_slower,
                "time_scale_needed": self.load.time_scale_needed if self.host_is_slower else None,
                **dict(predicted),
                "steps": self.load.steps,
                "late_steps": self.load.late_steps,
            }
        return found


def _keys() -> tuple[str, ...]:
    """Returns the keys of a result that hold a number, or null where there is none."""
    nobody = Conditions("", "", "completions", "", None, {}, "")
    document = LoadReport(nobody, Recorder(NO_SLO), RunSpan(0.0, 0.0, 0.0), HostEffort()).document()
    return tuple(key for key, value in document.items() if value is None or isinstance(value, int | float))


def _rate(workload: Mapping[str, object]) -> object:
    """Returns the rate as vLLM writes it: a number, or "inf" for a closed loop and for all at once."""
    return workload.get("rate") or "inf"


def _statistics(name: str, values: LatencyHistogram) -> Iterator[tuple[str, float | None]]:
    """Yields statistics under vLLM's keys, in milliseconds; None where nothing was measured (0 there)."""

    def milliseconds(seconds: float) -> float | None:
        return seconds * 1e3 if values.count else None

    yield f"mean_{name}_ms", milliseconds(values.mean)
    yield f"median_{name}_ms", milliseconds(values.at(50.0))
    yield f"std_{name}_ms", milliseconds(values.std)
    for percent in PERCENTS:
        yield f"p{percent:.0f}_{name}_ms", milliseconds(values.at(percent))
    yield f"max_{name}_ms", milliseconds(values.max)


def detail(outcomes: Sequence[RequestOutcome], start: float) -> dict[str, list[Any]]:
    """Returns each request's values under vLLM's --save-detailed keys, in seconds; 0 where missing."""
    return {
        "input_lens": [o.input_tokens or o.asked_input for o in outcomes],
        "output_lens": [o.output_tokens for o in outcomes],
        "ttfts": [o.ttft if o.first is not None and o.generated else 0.0 for o in outcomes],
        "itls": [o.gaps for o in outcomes],
        "latencies": [o.e2e if o.end == "completed" else 0.0 for o in outcomes],
        "start_times": [o.intended - start for o in outcomes],
        "errors": [f"{o.error}: {o.detail}" if o.error else "" for o in outcomes],
    }


KEYS = _keys()
"""Keys of a result that an assertion can name."""
