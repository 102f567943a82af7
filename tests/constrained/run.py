"""Constrained answers of the real engine, judged by other libraries; `make constrained` makes 10,000.

    python -m tests.constrained.run [--answers 10000] [--made-up 300] [--seed 1] [--shares 0.9 0.05 0.05]

Shares of the answers are made by a tiny model through `LLM`, by one through HTTP, and by the default model
through HTTP, streamed and not.  It exits with 1 where a finished answer does not fit its constraint, where
one fails, where a case of pydantic or the SDK is refused, or where fewer than 95 % of those with bounds
finish within 512 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
import numpy as np

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from corepipe.structured.constraints import StructuredOutputsParams, constraint_of
from corepipe.structured.grammars import grammar_of
from tests.constrained.cases import Case, cases
from tests.constrained.engine_times import EngineTimes
from tests.constrained.longer import longer
from tests.servers import PATIENCE_SECONDS, TINY, Served, default_model, served

TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
MOST = 512
"""The most tokens of an answer."""
CONTEXT = 1024
AT_ONCE = 200
SIDE_BY_SIDE = 16
ENOUGH = 0.95
NO_TOKENS = "the model has no tokens for"
"""Words of the 400 for constants with characters that the vocabulary lacks, as in generated cases."""


@dataclass(frozen=True)
class Ask:
    """A request for one answer."""

    case: Case
    temperature: float
    seed: int
    stream: bool


@dataclass
class Found:
    """The results of the answers."""

    finished: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unwritten: int = 0

    def judge(self, ask: Ask, text: str, reason: str) -> None:
        """Judges an answer by the check of its case."""
        kind = ("own, " if ask.case.own else "") + ("bounded" if ask.case.bounded else "unbounded")
        if reason == "length":
            self.cut[kind] += 1
            return
        if NO_TOKENS in reason and not ask.case.own:
            self.unwritten += 1
            return
        if reason != "stop":
            self.failed.append(f"{ask.case.name} at {ask.temperature}, seed {ask.seed}: {reason}")
            return
        self.finished[kind] += 1
        try:
            ask.case.check(text)
        except Exception as error:  # any error of another library
            said = " ".join(str(error).split())[:300]
            self.wrong.append(f"{ask.case.name} at {ask.temperature}, seed {ask.seed}: {text!r}: {said}")

    def share(self) -> float:
        """Returns the share of the answers with bounds that finished."""
        done = sum(count for kind, count in self.finished.items() if "unbounded" not in kind)
        cut = sum(count for kind, count in self.cut.items() if "unbounded" not in kind)
        return done / max(done + cut, 1)


def asks(listed: Sequence[Case], count: int, seed: int) -> Iterator[Ask]:
    """Yields requests over all cases and temperatures; every other one is streamed."""
    for number in range(count):
        case = listed[number % len(listed)]
        turn = number // len(listed)
        temperature = TEMPERATURES[(number + turn) % len(TEMPERATURES)]
        yield Ask(case, temperature, seed + number, stream=turn % 2 == 1)


def by_library(llm: LLM, wanted: Sequence[Ask], found: Found) -> None:
    for at in range(0, len(wanted), AT_ONCE):
        batch = wanted[at : at + AT_ONCE]
        params = [
            SamplingParams(
                temperature=one.temperature,
                seed=one.seed,
                max_tokens=MOST,
                structured_outputs=StructuredOutputsParams(**one.case.asked),
            )
            for one in batch
        ]
        for ask, output in zip(batch, llm.generate([f"{one.seed}: " for one in batch], params), strict=True):
            found.judge(ask, output.text, output.finish_reason)
        print(f"  {at + len(batch)} of {len(wanted)}", file=sys.stderr, flush=True)


def by_http(server: Served, wanted: Sequence[Ask], found: Found) -> None:
    model = server.get("/v1/models").json()["data"][0]["id"]
    limits = httpx.Limits(max_connections=SIDE_BY_SIDE)
    with (
        httpx.Client(base_url=server.url, timeout=10 * PATIENCE_SECONDS, limits=limits) as http,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        answers = pool.map(lambda ask: _answer(http, model, ask), wanted)
        for at, (ask, (text, reason)) in enumerate(zip(wanted, answers, strict=True), 1):
            found.judge(ask, text, reason)
            if at % AT_ONCE == 0:
                print(f"  {at} of {len(wanted)} over HTTP", file=sys.stderr, flush=True)


def _answer(http: httpx.Client, model: str, ask: Ask) -> tuple[str, str]:
    """Returns the text of an answer and its finish_reason."""
    asked = dict(ask.case.asked)
    if isinstance(asked.get("json"), type):
        asked["json"] = asked["json"].model_json_schema()
    body = {
        "model": model,
        "prompt": f"{ask.seed}: ",
        "max_tokens": MOST,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "structured_outputs": asked,
        "stream": ask.stream,
    }
    answer = http.post("/v1/completions", json=body)
    if answer.status_code != 200:
        return "", f"{answer.status_code}: {answer.text}"
    return _streamed(answer.text) if ask.stream else _whole(answer.text)


def _whole(body: str) -> tuple[str, str]:
    (choice,) = json.loads(body)["choices"]
    return choice["text"], choice["finish_reason"]


def _streamed(body: str) -> tuple[str, str]:
    text, reason = "", ""
    for line in body.split("\n"):  # JSON may contain other line ends
        if line.startswith("data: {"):
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                return text, f"error: {chunk['error']['message']}"
            for choice in chunk["choices"]:
                text += choice["text"]
                reason = choice["finish_reason"] or reason
    return text, reason


def taken(listed: Sequence[Case]) -> tuple[list[Case], list[str], list[str], list[float]]:
    """Returns the accepted cases, refusals of other cases and of our own, and the ms that each took."""
    good, refused, own, times = [], [], [], []
    for case in listed:
        began = time.perf_counter()
        try:
            grammar_of(constraint_of(StructuredOutputsParams(**case.asked)))
        except UserError as error:
            (own if case.own else refused).append(f"{case.name}: {error.message}")
            continue
        times.append(1e3 * (time.perf_counter() - began))
        good.append(case)
    return good, refused, own, times


def report(
    found: Found,
    refused: Sequence[str],
    own: Sequence[str],
    times: Sequence[float],
    engines: Mapping[str, EngineTimes],
) -> bool:
    middle, late = np.percentile(times, (50, 99))
    print(f"time to check a constraint: p50 {middle:.1f} ms, p99 {late:.1f} ms")
    for name, each in engines.items():
        print(f"the engine of {name}: {each}")
    print(f"refused before a token: {len(refused)} made up, {len(own)} of pydantic's and the SDK's")
    for cause, count in Counter(
        re.sub(r"^.*context=\(.*?\), ", "", line) for line in (*refused, *own)
    ).items():
        print(f"  {count} for: {cause}")
    print(f"refused before a token by a model that cannot write a constant: {found.unwritten}")
    for kind in sorted(found.finished | found.cut):
        finished, cut = found.finished[kind], found.cut[kind]
        print(f"{kind}: {finished + cut} answers, {finished} finished, {cut} cut by max_tokens")
    print(f"of those with bounds finished: {100 * found.share():.2f} %")
    print(f"finished and not what was asked: {len(found.wrong)}; failed: {len(found.failed)}")
    for line in (*found.wrong[:20], *found.failed[:20]):
        print(f"  {line}")
    return not (found.wrong or found.failed or own) and found.share() >= ENOUGH


def main(answers: int, made_up: int, seed: int, shares: Sequence[float]) -> bool:
    listed, refused, own, times = taken(cases(made_up, seed))
    wanted = list(asks(listed, answers, seed))
    first, second = (math.floor(answers * part) for part in (shares[0], shares[0] + shares[1]))
    found, engines, began = Found(), {}, time.monotonic()
    print(f"{answers} answers over {len(listed)} constraints", flush=True)
    with longer(TINY, CONTEXT) as tiny:
        if first:
            with LLM(tiny) as llm:
                by_library(llm, wanted[:first], found)
        for model, share in ((tiny, wanted[first:second]), (default_model(), wanted[second:])):
            if share:
                with served(model, "--max-model-len", CONTEXT) as server:
                    by_http(server, share, found)
                    engines[model.name] = EngineTimes.of(server)
    print(f"{time.monotonic() - began:.0f} s")
    return report(found, refused, own, times, engines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--made-up", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shares", type=float, nargs=3, default=(0.85, 0.1, 0.05))
    arguments = parser.parse_args()
    sys.exit(0 if main(arguments.answers, arguments.made_up, arguments.seed, arguments.shares) else 1)
