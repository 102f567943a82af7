"""Rows measured under load: the replicas behind the scheduler and router that serve HTTP, in virtual time.

As guidellm measures them: for a set time, and only what has ended by then counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from corepipe.neuron.cost import CostModel
from corepipe.neuron.timeline import Timeline
from corepipe.planning.arrivals import ArrivalKind, Arrivals
from corepipe.planning.calibration.assumed import LLMPERF
from corepipe.planning.calibration.cases import Case
from corepipe.planning.calibration.rows import Raw, Unpredictable, count, number, text
from corepipe.planning.lengths import Lengths
from corepipe.planning.simulation.simulate import Simulation
from corepipe.planning.workload import Synthetic, Workload
from corepipe.scheduler.policy import policy
from corepipe.scheduler.scheduler import SchedulerConfig

F64 = npt.NDArray[np.float64]

MEASURED_SECONDS = 120.0
"""How long a load lasts: with 128 users before a server of 0.38 requests a second the published mean time to
the first token is 52 s, which is half of this less a request's own time."""

INPUT_SPREAD, OUTPUT_SPREAD = 0.10, 0.08
"""Standard deviations of the lengths, as shares of their means: guidellm with 1500 +- 150 and 250 +- 20."""

BLOCK = 32
"""Positions in a KV block."""

ALONE = frozenset({"synchronous", "sequential"})
CONSTANT = frozenset({"constant", "uniform", "fixed"})
OPEN = CONSTANT | {"poisson", "asynchronous", "async", "open", "rate"}
CLOSED = frozenset({"", "throughput", "concurrent", "concurrency", "closed", "closed-loop"})
BURSTS = frozenset({"burst", "batch"})
"""What `arrival` may say: one request after another, at a rate, so many users, all at once."""

LARGE_VOCABULARY = 100_000
LLMPERF_TOKENS = 0.85
"""llmperf counts with Llama 2's tokenizer of 32,000 tokens, whatever the model's is (token_benchmark_ray.py);
that of Llama 3 makes up to 15 % fewer of a text (Meta's announcement of Llama 3)."""

MOST_BATCH = 4096
MOST_USERS = 1024
MOST_RATE = 100.0
MOST_OUTPUTS = 16384
"""Beyond these a load is not played: it would take too long."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who sends: `users` in a closed loop, or `once` each; or `rate` requests a second, of a `kind`.

    tokens: the model's own for each that the benchmark counts.
    """

    users: int | None
    rate: float | None
    kind: ArrivalKind = "poisson"
    once: bool = False
    tokens: float = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """What requests that ended in time saw: seconds, tokens."""

    first: F64
    total: F64
    gaps: F64
    gap_counts: F64
    outputs: F64
    seconds: float


def load(row: Raw, vocabulary: int) -> Traffic:
    """`arrival`, `users` and `rate`, for a model of `vocabulary` tokens.  Raises Unpredictable where they say
    too little.

    Without `arrival` a rate means Poisson arrivals, users alone a closed loop.  Beside a rate, `users` is the
    most that a sweep of guidellm keeps open: its requests are evenly spaced, whatever `arrival` calls them
    (guidellm: benchmark/profile.py, SweepProfile.rate_type), as the published times to a first token confirm,
    which do not queue at nine tenths of what the server can do.
    """
    arrival = text(row, "arrival").lower()
    users, rate = count(row, "users", 0), number(row, "rate")
    if rate is not None and rate > MOST_RATE:
        raise Unpredictable(f"rate must be up to {MOST_RATE:g} requests a second, not {rate:g}")
    if users > MOST_USERS:
        raise Unpredictable(f"users must be up to {MOST_USERS}, not {users}")
    if text(row, "task").lower() == LLMPERF and users and rate is None:
        return Traffic(
            users, None, once=True, tokens=LLMPERF_TOKENS if vocabulary > LARGE_VOCABULARY else 1.0
        )
    if arrival in ALONE:
        return Traffic(1, None)
    if arrival in OPEN or (not arrival and rate is not None):
        if rate is None:
            raise Unpredictable(f"a row with {arrival} arrivals needs its rate")
        return Traffic(None, rate, kind="constant" if arrival in CONSTANT or users else "poisson")
    if arrival in CLOSED or arrival in BURSTS:
        if not users:
            raise Unpredictable("a row under load needs its users, or its rate")
        return Traffic(users, None, once=arrival in BURSTS)
    known = ", ".join(sorted((ALONE | OPEN | CLOSED | BURSTS) - {""}))
    raise Unpredictable(f"arrival {arrival!r:.40} is none of {known}")


def serve(case: Case, cost: CostModel, offered: Traffic) -> Served:
    """Plays the load on all replicas of the case.  Raises Unpredictable for one that is too long."""
    if case.outputs > MOST_OUTPUTS:
        raise Unpredictable(f"under load output_len must be up to {MOST_OUTPUTS}, not {case.outputs}")
    if case.batch > MOST_BATCH:
        raise Unpredictable(f"under load batch_size must be up to {MOST_BATCH}, not {case.batch}")
    limits = SchedulerConfig(
        num_blocks=case.batch * -(-case.longest // BLOCK),
        block_size=BLOCK,
        max_num_seqs=case.batch,
        max_num_batched_tokens=max(case.batch, case.longest),
        max_model_len=case.longest,
        prefix_cache=False,
        max_queued_requests=1 << 20,
        max_queued_tokens=1 << 40,
    )
    timelines = [Timeline(cost) for _ in range(case.degrees.data)]
    run = Simulation(limits, policy(case.profile.policy), timelines, _workload(case, offered)).run()
    requests, (gaps, counts) = run.requests, run.gaps
    ended = requests["last_at"] <= (inf if offered.once else MEASURED_SECONDS)
    if not ended.any():
        raise Unpredictable(f"no request ends within {MEASURED_SECONDS:g} s")
    found = {name: values[ended] for name, values in requests.items()}
    seconds = float(found["last_at"].max() - found["arrival"].min())
    return Served(
        first=found["first_at"] - found["arrival"],
        total=found["last_at"] - found["arrival"],
        gaps=gaps,
        gap_counts=counts.astype(np.float64),
        outputs=found["output_tokens"] / offered.tokens,
        seconds=seconds,
    )


def _workload(case: Case, offered: Traffic) -> Workload:
    inputs, outputs = (max(1, round(offered.tokens * tokens)) for tokens in (case.inputs, case.outputs))
    return Synthetic(
        input_len=_around(inputs, INPUT_SPREAD, case.longest - outputs),
        output_len=_around(outputs, OUTPUT_SPREAD, case.longest - inputs),
        requests=offered.users if offered.once else None,
        duration=None if offered.once else MEASURED_SECONDS,
        arrivals=None if offered.rate is None else Arrivals(offered.rate, offered.kind),
        users=offered.users,
    ).workload()


def _around(mean: int, spread: float, most: int) -> Lengths:
    """Evenly distributed lengths with this mean and relative standard deviation, up to `most`."""
    reach = min(round(spread * sqrt(3) * mean), mean - 1, max(0, most - mean))
    return Lengths(f"uniform:{mean - reach}:{mean + reach}" if reach > 0 else str(mean))


def figure(metric: str, run: Served, quantile: float | None) -> float:  # noqa: PLR0911 -- one return a kind
    """A metric of what was served.  Raises Unpredictable for one that is not known."""
    match metric:
        case "ttft":
            return _at(run.first, quantile)
        case "itl":
            return _gap(run, quantile)
        case "tpot":
            return _at((run.total - run.first) / np.maximum(1, run.outputs - 1), quantile)
        case "per_token_latency":
            return _at(run.total / run.outputs, quantile)
        case "request_latency" | "latency":
            return _at(run.total, quantile)
        case "output_throughput":
            return float(run.outputs.sum()) / run.seconds
        case "request_rate" | "throughput":
            return len(run.outputs) / run.seconds
        case _:
            raise Unpredictable(f"the metric {metric!r:.40} is not known under load")


def _at(values: F64, quantile: float | None) -> float:
    return float(values.mean() if quantile is None else np.quantile(values, quantile))


def _gap(run: Served, quantile: float | None) -> float:
    if not len(run.gaps):
        raise Unpredictable("answers of one token have no times between tokens")
    if quantile is None:
        return float(np.average(run.gaps, weights=run.gap_counts))
    passed = np.cumsum(run.gap_counts) / run.gap_counts.sum()
    return float(run.gaps[np.searchsorted(passed, quantile)])
