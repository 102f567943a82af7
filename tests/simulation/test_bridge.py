"""The bridge between the two worlds: a paced server over real HTTP, and the same workload in virtual time.

The served model's tokens are real, the device and its pace are those of the model that is timed.  What the
server's device did is compared with a simulation of the arrivals that the server saw (to the last decision),
and what clients measured with a simulation of the arrivals that were planned.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice, permutations, product
from operator import attrgetter
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest

from corepipe.engine.config import EngineConfig
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.workload import Segment, Session, Synthetic, Turn, Workload, token_ids
from tests.servers import TINY, Served, default_model, served
from tests.tiny_encoders import write_bert

TIMED = "llama-3.1-8b"
ONE_CORE = {"pipeline": 1, "tensor": 1, "data": 1}
TWO_STAGES = {**ONE_CORE, "pipeline": 2}
LATE_SHARE = 0.01
"""The share of steps more than a millisecond late, as a shared machine has them, up to which clients are
compared."""
LEAD_SECONDS = 0.5
"""Seconds of the host before the first arrival."""


@dataclass(frozen=True)
class Case:
    """A deployment and what is asked of it; `scale` host seconds for a second of the device."""

    name: str
    model: str
    flags: Mapping[str, object]
    requests: int
    rate: float
    scale: float
    input_len: str = "uniform:20:120"
    output_len: str = "uniform:6:20"
    max_model_len: int = 256
    instance: str = "inf2.xlarge"
    seed: int = 1

    def engine(self) -> EngineConfig:
        options = {name.replace("-", "_"): value for name, value in self.flags.items()}
        return EngineConfig(model=TIMED, instance=self.instance, max_model_len=self.max_model_len, **options)

    def workload(self) -> Workload:
        lengths = Lengths.parse(self.input_len, "input-len"), Lengths.parse(self.output_len, "output-len")
        arrivals = Arrivals(self.rate)
        return Synthetic(*lengths, requests=self.requests, arrivals=arrivals, seed=self.seed).workload()

    def arguments(self) -> list[object]:
        # a core is left to the loop that lands batches while the next one is computed
        flags = {**self.flags, "max-model-len": self.max_model_len, "time-scale": self.scale, "threads": 1}
        model = TINY if self.model == "tiny" else default_model()
        fixed = ["--clock", "device", "--timing-model", TIMED, "--instance", self.instance]
        return [
            *(model, "--served-model-name", "m", *fixed),
            *(part for name, value in flags.items() for part in (f"--{name}", value)),
        ]


@dataclass(frozen=True)
class Seen:
    """One answer.  Times in seconds of the device: `arrival`, `ttft` and `tpot` as the server's device had
    them, `client_ttft` and `client_tpot` as its client measured them, who sent it at `sent`."""

    turn: Turn
    arrival: float
    ttft: float
    tpot: float
    client_ttft: float
    client_tpot: float
    sent: float = 0.0


async def ask(client: httpx.AsyncClient, turn: Turn, at: float, scale: float) -> Seen:
    """Sends a request at `at`, on the host's clock, and reads its tokens as they come."""
    body = {
        "model": "m",
        "prompt": token_ids(turn.prompt, 300),
        "max_tokens": turn.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "device_metrics": True,
        "logprobs": 0,  # with them each token is told, also where its text is not a whole character yet
    }
    await asyncio.sleep(at - time.perf_counter())
    sent, came, device = time.perf_counter(), [], {}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                came.append(time.perf_counter())
                device = json.loads(line.removeprefix("data: ")).get("corepipe", device)
    assert device["emulated"] is True
    first, last = came[0] - sent, came[-1] - came[0]
    return Seen(
        turn,
        device["arrived_at_s"],
        device["time_to_first_token_ms"] / 1e3,
        device["time_per_output_token_ms"] / 1e3,
        first / scale,
        last / (turn.output_tokens - 1) / scale,
        sent / scale,
    )


async def play(url: str, sessions: Sequence[Session], scale: float) -> list[Seen]:
    async with httpx.AsyncClient(
        base_url=url, timeout=None, limits=httpx.Limits(max_connections=None)
    ) as client:
        await client.get("/health")
        start = time.perf_counter() + LEAD_SECONDS
        waiting = [
            ask(client, session.turns[0], start + (session.start or 0.0) * scale, scale)
            for session in sessions
        ]
        return list(await asyncio.gather(*waiting))


def as_seen(answers: Sequence[Seen]) -> Workload:
    """The same requests, at the times at which they came to the server's device."""

    def sessions() -> Iterator[Session]:
        for seen in answers:
            yield Session(seen.arrival, (seen.turn,))

    return Workload(sessions, shares_prefixes=False)


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """p50 and p99."""
    p50, p99 = np.percentile(values, [50, 99])
    return float(p50), float(p99)


def compare(case: Case, server: Served) -> tuple[Workload, list[Seen], bool]:
    """The workload, its answers, which have been decided as they would be in virtual time, and whether so few
    steps were late that what clients measured is the device's time and not the host's doing."""
    workload = case.workload()
    answers = asyncio.run(play(server.url, list(workload.sessions()), case.scale))
    late, steps = (server.metric(f"corepipe_{name}_total") for name in ("late_steps", "steps"))
    print(f"{case.name} at {case.scale:g} times its time: {late:.0f} of {steps:.0f} steps late")
    same_decisions(case, answers)
    not_before_the_device(answers)
    return workload, answers, late <= LATE_SHARE * steps


def same_decisions(case: Case, answers: Sequence[Seen]) -> None:
    """Equal device times, request by request: every batch had the same requests and tokens in it.

    In which order requests of the same moment came the server does not tell: it must be one of them.
    """
    config = SimulationConfig(case.engine())
    found = device_times([(seen.arrival, seen.ttft, seen.tpot, seen.turn.output_tokens) for seen in answers])
    replays = (replayed(config, order) for order in islice(orders(answers), MOST_ORDERS))
    assert any(np.allclose(found, replay, rtol=1e-9, atol=0.0) for replay in replays), found


MOST_ORDERS = 720
"""Six requests of one moment."""


def orders(answers: Sequence[Seen]) -> Iterator[list[Seen]]:
    """By arrival, with those that came at the same moment in any order."""
    ordered = sorted(answers, key=attrgetter("arrival"))
    moments = [permutations(together) for _, together in groupby(ordered, attrgetter("arrival"))]
    return (list(chain.from_iterable(order)) for order in product(*moments))


def replayed(config: SimulationConfig, order: Sequence[Seen]) -> npt.NDArray[np.float64]:
    """The device times of a simulation in which the requests come in this order."""
    requests = simulate(config, as_seen(order)).requests
    arrival, first, last, tokens = (
        requests[name] for name in ("arrival", "first_at", "last_at", "output_tokens")
    )
    rows = zip(arrival, first - arrival, (last - first) / (tokens - 1), tokens, strict=True)
    return device_times(list(rows))


def device_times(rows: Sequence[tuple[float, float, float, float]]) -> npt.NDArray[np.float64]:
    """Arrival, TTFT, TPOT and tokens of each request, in an order that a last bit does not change."""
    return np.array(sorted(rows, key=lambda row: (row[0], row[3], round(row[1], 9), round(row[2], 9))))


def not_before_the_device(answers: Sequence[Seen]) -> None:
    """However late the host was, nobody was told a token before the device had it.

    By the clock that began when the first request was sent: one that meets a late host may have come, for the
    device, before it was sent.
    """
    first = min(answers, key=attrgetter("arrival"))
    for seen in answers:
        came, told = seen.arrival - first.arrival, seen.sent - first.sent
        gaps = seen.turn.output_tokens - 1
        assert told + seen.client_ttft >= 0.999 * (came + seen.ttft)
        assert told + seen.client_ttft + gaps * seen.client_tpot >= 0.999 * (
            came + seen.ttft + gaps * seen.tpot
        )


def alike_for_clients(case: Case, workload: Workload, answers: list[Seen]) -> None:
    """p50 within 10 % and p99 within 20 % of the planned workload's."""
    planned = simulate(SimulationConfig(case.engine()), workload).requests
    ttft = planned["first_at"] - planned["arrival"]
    tpot = (planned["last_at"] - planned["first_at"]) / (planned["output_tokens"] - 1)
    for name, expected, found in (
        ("TTFT", ttft, [seen.client_ttft for seen in answers]),
        ("TPOT", tpot, [seen.client_tpot for seen in answers]),
    ):
        pairs = list(zip(quantiles(expected), quantiles(found), (0.10, 0.20), strict=True))
        print(
            f"{case.name}: {name} p50 and p99, simulated and measured:",
            *(f"{e:.4f} {f:.4f};" for e, f, _ in pairs),
        )
        for wanted, measured, bound in pairs:
            assert measured == pytest.approx(wanted, rel=bound), name


@pytest.mark.parametrize(
    "case",
    [
        Case("one core", "tiny", ONE_CORE, requests=12, rate=12.0, scale=2.0),
        Case("two stages", "tiny", {**TWO_STAGES, "profile": "async"}, 12, 20.0, 2.0),
    ],
    ids=lambda case: case.name,
)
def test_a_server_and_a_simulation_do_the_same(case: Case) -> None:
    with served(*case.arguments()) as server:
        compare(case, server)


async def embed(client: httpx.AsyncClient, tokens: int, at: float) -> tuple[float, float, int]:
    """Sends a text at `at`, on the host's clock: when it came to the device, was done, and its tokens."""
    body = {"model": "m", "input": token_ids((Segment(tokens, tokens),), 60), "device_metrics": True}
    await asyncio.sleep(at - time.perf_counter())
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    told = answer.json()["corepipe"]
    return told["arrived_at_s"], told["arrived_at_s"] + told["time_to_first_token_ms"] / 1e3, tokens


def embedded(answers: Sequence[tuple[float, float, int]]) -> Workload:
    """The same texts, at the times at which they came to the server's device."""

    def sessions() -> Iterator[Session]:
        for number, (arrival, _, tokens) in enumerate(answers):
            yield Session(arrival, (Turn((Segment(number, tokens),), 1, number),))

    return Workload(sessions, shares_prefixes=False)


@pytest.mark.parametrize("options", [{"max_batch_delay": 0.02, "data": 2}, {"pipeline": 2}], ids=str)
def test_a_server_of_vectors_and_a_simulation_do_the_same(tmp_path: Path, options: dict[str, object]) -> None:
    """Every batch had the same texts in it, and was padded to the same graph."""
    placed = {**ONE_CORE, **options}
    flags = [part for name, value in placed.items() for part in (f"--{name.replace('_', '-')}", value)]
    fixed = ["--clock", "device", "--timing-model", "bert-base", "--time-scale", 20, "--threads", 1]
    lengths = [1 + 37 * number % 120 for number in range(40)]

    async def asked(url: str) -> list[tuple[float, float, int]]:
        async with httpx.AsyncClient(base_url=url, timeout=None) as client:
            start = time.perf_counter() + LEAD_SECONDS
            waiting = [embed(client, tokens, start + 0.03 * at) for at, tokens in enumerate(lengths)]
            return list(await asyncio.gather(*waiting))

    with served(write_bert(tmp_path), "--served-model-name", "m", *fixed, *flags) as server:
        answers = asyncio.run(asked(server.url))
    engine = EngineConfig(model="bert-base", format="int8", clock="device", **placed)
    found = sorted((arrival, round(end, 9)) for arrival, end, _ in answers)
    ordered = sorted(answers, key=lambda answer: answer[0])
    moments = [permutations(together) for _, together in groupby(ordered, lambda answer: answer[0])]
    orders = (list(chain.from_iterable(order)) for order in product(*moments))
    for order in islice(orders, MOST_ORDERS):
        requests = simulate(SimulationConfig(engine), embedded(order)).requests
        ended = sorted(zip(requests["arrival"], np.round(requests["last_at"], 9), strict=True))
        if np.allclose(found, ended, rtol=0, atol=2e-9):
            return
    raise AssertionError(found)


FULL = [
    Case("one core", "default", ONE_CORE, requests=60, rate=3.0, scale=6.0),
    Case("two stages", "default", TWO_STAGES, requests=60, rate=5.0, scale=6.0),
    Case("two stages, mixed", "default", {**TWO_STAGES, "profile": "async"}, 60, 5.0, 10.0, seed=3),
    Case("three stages", "default", {**ONE_CORE, "pipeline": 3}, 60, 6.0, 6.0, instance="inf2.24xlarge"),
    Case("two replicas", "default", {**ONE_CORE, "data": 2}, requests=60, rate=5.0, scale=6.0),
]


SLOWER = (1.0, 2.0, 4.0)
"""Times a case's scale: the busier the machine, the longer it gets for a second of the device."""


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=lambda case: case.name)
def test_a_server_and_a_simulation_do_the_same_in_every_placement(case: Case) -> None:
    for slower in SLOWER:
        paced = replace(case, scale=case.scale * slower)
        with served(*paced.arguments()) as server:
            workload, answers, kept_up = compare(paced, server)
        if kept_up:
            alike_for_clients(paced, workload, answers)
            return
    pytest.skip("the decisions are the same; this machine is too busy to compare what clients measured")
