"""Predictions under load: replicas behind the scheduler and router that serve HTTP, in virtual time.

They are measured as guidellm does: for a set time, and only requests that ended by then count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log, sqrt
from random import Random

import numpy as np
import numpy.typing as npt

from corepipe.neuron.timing.cost import CostModel
from corepipe.neuron.timing.timeline import Timeline
from corepipe.planning.calibration.assumed import LLMPERF
from corepipe.planning.calibration.cases import Case
from corepipe.planning.calibration.rows import Raw, Unpredictable, count, number, text
from corepipe.scheduler.next_batch import policy
from corepipe.scheduler.scheduler import SchedulerConfig
from corepipe.simulation.scenario import Scenario
from corepipe.simulation.simulate import run
from corepipe.workload.arrivals import ArrivalKind, Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Synthetic, Workload

F64 = npt.NDArray[np.float64]

MEASURED_SECONDS = 120.0
"""Seconds of a load: guidellm 0.1's default (main.py, max-seconds).  With 128 users before a server of
0.38 requests a second the published mean time to the first token is 52 s: half of this, less a request's
own."""

SWEEP_REQUESTS = 5
"""Requests of a sweep's second run at most, for each that its first run, of one user, had answered in the
same time (guidellm 0.1, executor/profile_generator.py, create_sweep_profile)."""

SAMPLES = 512
"""Number of lengths that are drawn, and then used in turn."""

BLOCK = 32
"""Positions in a KV block."""

ALONE = frozenset({"synchronous", "sequential"})
CONSTANT = frozenset({"constant", "uniform", "fixed"})
OPEN = CONSTANT | {"poisson", "asynchronous", "async", "open", "rate"}
CLOSED = frozenset({"", "concurrent", "concurrency", "closed", "closed-loop"})
SWEEPS = frozenset({"throughput"})
BURSTS = frozenset({"burst", "batch"})
"""Values of `arrival`: one request after another, at a rate, by a number of users, the same in a sweep of
guidellm, all at once."""

LARGE_VOCABULARY = 100_000
LLMPERF_TOKENS = 0.85
"""Tokens of Llama 2's tokenizer per token of the model, where its vocabulary is large: llmperf counts with
Llama 2's tokenizer of 32,000 tokens, whatever the model's is (token_benchmark_ray.py); that of Llama 3
makes up to 15 % fewer of a text (Meta's announcement of Llama 3)."""

MOST_BATCH = 4096
MOST_USERS = 1024
MOST_RATE = 100.0
MOST_OUTPUTS = 16384
"""Limits of a load that is simulated: beyond these it would take too long."""


@dataclass(frozen=True, slots=True)
class LengthSpread:
    """The spread of the lengths that a benchmark sends and requests, around its means.

    inputs, outputs: standard deviations, as shares of the means.  ended: the share of answers that end by
    themselves before the requested length, with equal probability at each of their tokens.
    """

    inputs: float
    outputs: float
    ended: float = 0.0


SWEPT = LengthSpread(sqrt(150) / 1500, sqrt(20) / 250, ended=0.23)
"""Lengths of optimum-neuron's sweeps: it passes guidellm variances of 150 and 20 tokens
(benchmark/vllm/benchmark.sh; guidellm 0.1, request/emulated.py, takes their roots), and lets answers end
early (backend/openai.py).  Tokens per second over requests per second are 0.78 to 0.99 of the requested
length, by family; their mean makes `ended`."""

SPREAD = LengthSpread(0.10, 0.08)
"""Lengths of other loads: llmperf is run with deviations of 150 of 1500 tokens and 20 of 245
(optimum-neuron, benchmark/text-generation-inference/benchmark.sh)."""


@dataclass(frozen=True, slots=True)
class RowLoad:
    """The load of a row: `users` in a closed loop, or `once` each; or `rate` requests per second, of a
    `kind`.

    limited: to SWEEP_REQUESTS for each that one user has answered in the same time.  tokens: the model's own
    tokens per token that the benchmark counts.
    """

    users: int | None
    rate: float | None
    kind: ArrivalKind = "poisson"
    once: bool = False
    limited: bool = False
    tokens: float = 1.0
    lengths: LengthSpread = SPREAD


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """The figures of requests that ended in time: seconds, tokens."""

    first: F64
    total: F64
    gaps: F64
    gap_counts: F64
    outputs: F64
    seconds: float


def load(row: Raw, vocabulary: int) -> RowLoad:
    """Reads `arrival`, `users` and `rate`, for a model of `vocabulary` tokens.  Raises Unpredictable where
    they are not enough.

    Without `arrival` a rate means Poisson arrivals, users alone a closed loop.  A sweep of guidellm has
    "throughput" for `arrival`, or beside a rate or one request after another the `users` that it keeps open
    at most.  At a rate its requests are evenly spaced, whatever `arrival` calls them (guidellm 0.1,
    executor/profile_generator.py), as the published times to a first token confirm, which do not queue at
    nine tenths of the server's capacity.
    """
    arrival = text(row, "arrival").lower()
    users, rate = _offered(row)
    if text(row, "task").lower() == LLMPERF and users and rate is None:
        tokens = LLMPERF_TOKENS if vocabulary > LARGE_VOCABULARY else 1.0
        return RowLoad(users, None, once=True, tokens=tokens)
    if arrival in ALONE:
        return RowLoad(1, None, lengths=SWEPT if users > 1 else SPREAD)
    if arrival in OPEN or (not arrival and rate is not None):
        if rate is None:
            raise Unpredictable(f"a row with {arrival} arrivals needs its rate")
        kind: ArrivalKind = "constant" if arrival in CONSTANT or users else "poisson"
        return RowLoad(None, rate, kind, lengths=SWEPT if users else SPREAD)
    if arrival not in CLOSED | SWEEPS | BURSTS:
        known = ", ".join(sorted((ALONE | OPEN | CLOSED | SWEEPS | BURSTS) - {""}))
        raise Unpredictable(f"arrival {arrival!r:.40} is none of {known}")
    if not users:
        raise Unpredictable("a row under load needs its users, or its rate")
    if arrival in SWEEPS:
        return RowLoad(users, None, limited=True, lengths=SWEPT)
    return RowLoad(users, None, once=arrival in BURSTS)


def _offered(row: Raw) -> tuple[int, float | None]:
    """Returns users (0: not stated) and requests per second.  Raises Unpredictable for too many."""
    users, rate = count(row, "users", 0), number(row, "rate")
    if rate is not None and rate > MOST_RATE:
        raise Unpredictable(f"rate must be up to {MOST_RATE:g} requests a second, not {rate:g}")
    if users > MOST_USERS:
        raise Unpredictable(f"users must be up to {MOST_USERS}, not {users}")
    return users, rate


def serve(case: Case, cost: CostModel, offered: RowLoad) -> ServedRequests:
    """Plays the load on all replicas of the case.  Raises Unpredictable for one that is too long."""
    if case.outputs > MOST_OUTPUTS:
        raise Unpredictable(f"under load output_len must be up to {MOST_OUTPUTS}, not {case.outputs}")
    if case.batch > MOST_BATCH:
        raise Unpredictable(f"under load batch_size must be up to {MOST_BATCH}, not {case.batch}")
    requests: int | None = offered.users if offered.once else None
    if offered.limited:
        requests = SWEEP_REQUESTS * len(_play(case, cost, replace(offered, users=1), None).outputs)
    return _play(case, cost, offered, requests)


def _play(case: Case, cost: CostModel, offered: RowLoad, requests: int | None) -> ServedRequests:
    """Plays the load, up to so many requests (None: as many as are sent in time)."""
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
    workload = _workload(case, offered, requests)
    record = run(Scenario(limits, policy(case.profile.policy), timelines, workload))
    seen, (gaps, counts) = record.requests, record.gaps
    ended = seen["last_at"] <= (inf if offered.once else MEASURED_SECONDS)
    if not ended.any():
        raise Unpredictable(f"no request ends within {MEASURED_SECONDS:g} s")
    found = {name: values[ended] for name, values in seen.items()}
    seconds = float(found["last_at"].max() - found["arrival"].min())
    return ServedRequests(
        first=found["first_at"] - found["arrival"],
        total=found["last_at"] - found["arrival"],
        gaps=gaps,
        gap_counts=counts.astype(np.float64),
        outputs=found["output_tokens"] / offered.tokens,
        seconds=seconds,
    )


def _workload(case: Case, offered: RowLoad, requests: int | None) -> Workload:
    inputs, outputs = (max(1, round(offered.tokens * tokens)) for tokens in (case.inputs, case.outputs))
    spread = offered.lengths
    return Synthetic(
        input_len=_around(inputs, spread.inputs, case.longest - outputs),
        output_len=_around(outputs, spread.outputs, case.longest - inputs, spread.ended),
        requests=requests,
        duration=None if offered.once else MEASURED_SECONDS,
        arrivals=None if offered.rate is None else Arrivals(offered.rate, offered.kind),
        users=offered.users,
    ).workload()


def _around(mean: int, spread: float, most: int, ended: float = 0.0) -> Lengths:
    """Returns normally distributed lengths with this mean and relative standard deviation, cut
    symmetrically around the mean so that none exceeds `most`; a share of them ends earlier."""
    random = Random(mean)  # noqa: S311 -- a length is no secret
    reach = max(0, min(mean - 1, most - mean))
    rate = -log(1 - ended) / mean

    def one() -> int:
        asked = mean + min(reach, max(-reach, round(random.gauss(0, spread * mean))))
        return min(asked, 1 + int(random.expovariate(rate))) if rate else asked

    return Lengths("list:" + ",".join(str(one()) for _ in range(SAMPLES)))


def figure(metric: str, run: ServedRequests, quantile: float | None) -> float:  # noqa: PLR0911 -- one return a kind
    """Returns a metric of the simulated requests.  Raises Unpredictable for one that is not known."""
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


def _gap(run: ServedRequests, quantile: float | None) -> float:
    if not len(run.gaps):
        raise Unpredictable("answers of one token have no times between tokens")
    if quantile is None:
        return float(np.average(run.gaps, weights=run.gap_counts))
    passed = np.cumsum(run.gap_counts) / run.gap_counts.sum()
    return float(run.gaps[np.searchsorted(passed, quantile)])
