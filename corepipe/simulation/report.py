"""The report of a simulation: latencies, throughput, and where the device's time went."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import fsum

import numpy as np
import numpy.typing as npt

from corepipe.engine.assembly.device_plan import DevicePlan
from corepipe.engine.speculative_config import SpeculativeConfig
from corepipe.neuron.chips.hardware import dollars_per_million_tokens
from corepipe.neuron.timing.uncertainty import LEVEL
from corepipe.simulation.assumed_drafts import SyntheticDrafts
from corepipe.simulation.intervals import Intervals
from corepipe.simulation.record import SimulationRecord
from corepipe.simulation.usage import DeviceUsage
from corepipe.version import __version__
from corepipe.workload.quantiles import Quantiles
from corepipe.workload.slo import Slo
from corepipe.workload.workload import Workload

Floats = npt.NDArray[np.float64]

SCHEMA = "corepipe.simulation/1"
MILLISECONDS = 1e3
GROWS = 0.02
"""The queue counts as growing where requests that come a second later wait longer by more than so many
seconds."""
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates per second of simulated time, from the first arrival to the last token."""

    requests: float
    output_tokens: float
    total_tokens: float
    good_requests: float
    """Those that meet every objective (all of them where there is none)."""


@dataclass(frozen=True)
class SimulationReport:
    """Seconds, tokens.  A Quantiles is None where there was nothing to measure.

    ttft: from the arrival to the first token.  tpot: (last - first token) / (tokens - 1) of each request.
    itl: every gap between tokens.  queue: from the arrival until first scheduled.  seconds: from the first
    arrival to the last token.  good: requests that meet every objective.  price_per_hour: dollars for the
    instance; None: not known.  drafts: the counts of drafts, where acceptance rates were assumed.
    requests: of each answered request, in order of its end, the columns of `record.REQUEST_COLUMNS`.
    """

    sent: int
    completed: int
    good: int
    rejected: dict[str, int]
    seconds: float
    ttft: Quantiles | None
    tpot: Quantiles | None
    itl: Quantiles | None
    e2e: Quantiles | None
    queue: Quantiles | None
    throughput: Throughput
    slo: Slo
    price_per_hour: float | None
    deployment: dict[str, object]
    workload: dict[str, object]
    requests: dict[str, Floats] = field(repr=False)
    record: SimulationRecord = field(repr=False)
    device: DevicePlan = field(repr=False)
    drafts: SyntheticDrafts | None = None

    @classmethod
    def of(
        cls,
        record: SimulationRecord,
        device: DevicePlan,
        slo: Slo,
        workload: Workload,
        speculation: SpeculativeConfig | None = None,
    ) -> SimulationReport:
        """Sums a record up."""
        requests = record.requests
        latency = Latencies.of(requests)
        good = int(latency.meets(slo).sum())
        return cls(
            sent=record.sent,
            completed=len(requests["arrival"]),
            good=good,
            rejected=dict(record.rejected),
            seconds=_wall_seconds(requests),
            ttft=Quantiles.of(latency.ttft),
            tpot=Quantiles.of(latency.tpot[requests["output_tokens"] > 1]),
            itl=Quantiles.of(*record.gaps),
            e2e=Quantiles.of(latency.e2e),
            queue=Quantiles.of(latency.queue),
            throughput=_throughput(requests, good),
            slo=slo,
            price_per_hour=device.instance.price_per_hour,
            deployment=_deployment(device, record),
            workload=workload.about,
            requests=requests,
            record=record,
            device=device,
            drafts=SyntheticDrafts.of(
                speculation,
                record.drafted,
                [replica.timeline for replica in record.replicas],
                None if device.draft is None else device.draft.graph.name,
            ),
        )

    @cached_property
    def usage(self) -> DeviceUsage:
        """Returns the usage of the cores."""
        return DeviceUsage.of(self.record, self.seconds)

    @property
    def overloaded(self) -> bool:
        """Tells whether more came in an open loop than was answered: the queue was full, or it grew."""
        if self.workload.get("users") is not None:
            return False
        return self.growth > GROWS or self.rejected["overloaded"] > 0

    @cached_property
    def growth(self) -> float:
        """Returns the growth of the queue; see `queue_growth`."""
        return queue_growth(self.requests)

    @property
    def dollars_per_million_output_tokens(self) -> float | None:
        """At the instance's price; None where there is none, or no token."""
        tokens = self.throughput.output_tokens
        if self.price_per_hour is None or tokens == 0:
            return None
        return dollars_per_million_tokens(self.price_per_hour, tokens)

    @cached_property
    def intervals(self) -> Intervals:
        """Returns the intervals in which measurements of each figure are expected."""
        return Intervals(self.device, self.requests)

    def document(self) -> dict[str, object]:
        """Returns the report for machines: milliseconds, tokens, requests."""
        return {
            "schema": SCHEMA,
            "emulated": True,
            **{name: why for name, why in self.deployment.items() if name == "hypothetical"},
            "corepipe": __version__,
            "deployment": self.deployment,
            "workload": self.workload,
            "requests": {"sent": self.sent, "completed": self.completed, "rejected": self.rejected},
            "duration_seconds": self.seconds,
            **{f"{name}_ms": _milliseconds(getattr(self, name)) for name in LATENCIES},
            "throughput": {f"{name}_per_second": value for name, value in asdict(self.throughput).items()},
            "intervals": self._intervals(),
            "goodput": self._goodput(),
            **self._used(),
            **({} if self.drafts is None else {"speculation": self.drafts.document()}),
            "cost": {
                "dollars_per_hour": self.price_per_hour,
                "dollars_per_million_output_tokens": self.dollars_per_million_output_tokens,
                "core_seconds": self.usage.core_seconds,
                "instance_seconds": self.seconds,
            },
        }

    def to_json(self) -> str:
        """The document; the same report gives the same bytes."""
        return json.dumps(self.document(), indent=2)

    def _intervals(self) -> dict[str, object]:
        """{figure: [least, most]} beside the figures, under the same names."""
        known = self.intervals
        latencies = {name: getattr(self, name) for name in LATENCIES}
        return {
            "level": LEVEL,
            **{f"{name}_ms": known.latencies(name, found, MILLISECONDS) for name, found in latencies.items()},
            "throughput": {
                f"{name}_per_second": known.rate(value) for name, value in asdict(self.throughput).items()
            },
            "dollars_per_million_output_tokens": known.cost(self.dollars_per_million_output_tokens),
            "basis": {figure: known.of(figure).basis for figure in known.figures},
        }

    def _goodput(self) -> dict[str, object]:
        limits = {f"{name}_ms": limit and limit * MILLISECONDS for name, limit in asdict(self.slo).items()}
        return {
            "slo": limits,
            "requests_per_second": self.throughput.good_requests,
            "share": self.good / self.sent if self.sent else 0.0,
        }

    def _used(self) -> dict[str, object]:
        usage = self.usage
        found = usage.prefix_hits / usage.prefix_queries if usage.prefix_queries else 0.0
        return {
            "queue": {"mean": usage.waiting_mean, "max": usage.waiting_max},
            "kv_cache": {"blocks": usage.kv_blocks, "peak": usage.kv_peak, "mean": usage.kv_mean},
            "preemptions": usage.preemptions,
            "prefix_cache": {
                "queried_tokens": usage.prefix_queries, "found_tokens": usage.prefix_hits, "hit_rate": found,
            },
            "batches": {
                "steps": usage.steps, "mean_sequences": usage.batch_mean, "padding_waste": usage.padding,
            },
            "pipeline": {
                "fill": usage.fill,
                "occupancy": usage.occupancy,
                "hand_over_ms": usage.hand_over * MILLISECONDS,
            },
            "device": {
                "busy": usage.busy,
                "engines": usage.engines,
                "bound_by": usage.bound,
                "bottleneck": usage.bottleneck,
            },
        }  # fmt: skip


_ELSEWHERE = frozenset({"cores", "emulated", "intervals"})
"""The fields of a placement that a document has elsewhere, or not at all."""


def _deployment(device: DevicePlan, record: SimulationRecord) -> dict[str, object]:
    placed = {name: value for name, value in device.describe().items() if name not in _ELSEWHERE}
    limits = record.limits
    return {
        "model": device.graph.name,
        **placed,
        "instance_cores": device.instance.cores,
        "max_model_len": limits.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "block_size": limits.block_size,
        "kv_blocks_per_replica": limits.num_blocks,
    }


def _milliseconds(quantiles: Quantiles | None) -> dict[str, float] | None:
    return None if quantiles is None else quantiles.scaled(MILLISECONDS)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds of each request; tpot is 0 where there is but one token."""

    ttft: Floats
    tpot: Floats
    e2e: Floats
    queue: Floats

    @classmethod
    def of(cls, requests: dict[str, Floats]) -> Latencies:
        arrival, first, last = (requests[name] for name in ("arrival", "first_at", "last_at"))
        tpot = (last - first) / np.maximum(1, requests["output_tokens"] - 1)
        return cls(first - arrival, tpot, last - arrival, requests["scheduled_at"] - arrival)

    def meets(self, slo: Slo) -> npt.NDArray[np.bool_]:
        """Returns which requests meet every objective."""
        good = np.ones(len(self.ttft), np.bool_)
        for limit, seconds in ((slo.ttft, self.ttft), (slo.tpot, self.tpot), (slo.e2e, self.e2e)):
            if limit is not None:
                good &= seconds <= limit
        return good


def queue_growth(requests: dict[str, Floats]) -> float:
    """Returns by how many seconds requests that come a second later wait longer, where waiting grows from the
    first half of the requests to the second, and beyond what a few wait for one another: answers then leave
    at 1 / (1 + it) of the rate at which requests come.  0 where it does not grow."""
    order = np.argsort(requests["arrival"], kind="stable")
    arrival = requests["arrival"][order]
    waited = requests["scheduled_at"][order] - arrival
    half, spread = len(waited) // 2, float(arrival.var()) if len(waited) else 0.0
    if not half or not spread:
        return 0.0
    alone = float((requests["first_at"] - requests["scheduled_at"]).mean())
    if waited[half:].mean() <= max(alone, 2 * float(waited[:half].mean())):
        return 0.0
    return float(((arrival - arrival.mean()) * (waited - waited.mean())).mean()) / spread


def _wall_seconds(requests: dict[str, Floats]) -> float:
    if len(requests["arrival"]) == 0:
        return 0.0
    return float(requests["last_at"].max() - requests["arrival"].min())


def _throughput(requests: dict[str, Floats], good: int) -> Throughput:
    seconds = _wall_seconds(requests)
    if seconds == 0:
        return Throughput(0.0, 0.0, 0.0, 0.0)
    output, prompts = fsum(requests["output_tokens"]), fsum(requests["prompt_tokens"])
    done = len(requests["arrival"])
    return Throughput(done / seconds, output / seconds, (output + prompts) / seconds, good / seconds)
