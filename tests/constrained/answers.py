"""Constrained answers of a real engine, judged by other libraries, through `LLM` and over HTTP."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

from corepipe import LLM, SamplingParams
from corepipe.errors import UserError
from corepipe.structured.constraints import StructuredOutputsParams, constraint_of
from corepipe.structured.grammars import grammar_of
from tests.constrained.cases import Case
from tests.servers import PATIENCE_SECONDS, Served

TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
MOST = 512
"""The most tokens of an answer."""
CONTEXT = 1024
AT_ONCE = 200
SIDE_BY_SIDE = 16
NO_TOKENS = "the model has no tokens for"
"""Words of the 400 for constants with characters that the vocabulary lacks, as in generated cases."""


@dataclass(frozen=True)
class Ask:
    """A request for one answer."""

    case: Case
    temperature: float
    seed: int
    stream: bool

    @property
    def kind(self) -> str:
        return "bounded" if self.case.bounded else "unbounded"


@dataclass
class Judged:
    """Counts of answers by kind; `wrong`: those that finished, and are not what was asked."""

    finished: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def judge(self, kind: str, asked: object, reason: str, check: Callable[[], None]) -> None:
        """Judges an answer by a check that raises."""
        if reason == "length":
            self.cut[kind] += 1
            return
        self.finished[kind] += 1
        try:
            check()
        except Exception as error:  # any error of another library
            self.wrong.append(f"{asked}: {' '.join(repr(error).split())[:300]}")

    def share(self, *kinds: str) -> float:
        """Returns the share of the answers of these kinds, or of all, that finished."""
        done, cut = (
            sum(count for kind, count in counts.items() if kind in (kinds or counts))
            for counts in (self.finished, self.cut)
        )
        return done / max(done + cut, 1)


def _judge(judged: Judged, ask: Ask, text: str, reason: str) -> None:
    def check() -> None:
        assert reason == "stop", reason
        ask.case.check(text)

    if ask.case.own or NO_TOKENS not in reason:
        judged.judge(
            ask.kind, f"{ask.case.name} at {ask.temperature}, seed {ask.seed}: {text!r}", reason, check
        )


def asks(listed: Sequence[Case], count: int, seed: int) -> Iterator[Ask]:
    """Yields requests over all cases and temperatures; every other one is streamed."""
    for number in range(count):
        case = listed[number % len(listed)]
        turn = number // len(listed)
        temperature = TEMPERATURES[(number + turn) % len(TEMPERATURES)]
        yield Ask(case, temperature, seed + number, stream=turn % 2 == 1)


def by_library(llm: LLM, wanted: Sequence[Ask], judged: Judged) -> None:
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
            _judge(judged, ask, output.text, output.finish_reason)
        print(f"  {at + len(batch)} of {len(wanted)}", file=sys.stderr, flush=True)


def by_http(server: Served, wanted: Sequence[Ask], judged: Judged) -> None:
    model = server.get("/v1/models").json()["data"][0]["id"]
    limits = httpx.Limits(max_connections=SIDE_BY_SIDE)
    with (
        httpx.Client(base_url=server.url, timeout=10 * PATIENCE_SECONDS, limits=limits) as http,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        for ask, said in zip(wanted, pool.map(lambda ask: _answer(http, model, ask), wanted), strict=True):
            _judge(judged, ask, *said)


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


def taken(listed: Sequence[Case]) -> list[Case]:
    """Returns the accepted cases; raises where one of pydantic's or the SDK's is refused."""
    good = []
    for case in listed:
        try:
            grammar_of(constraint_of(StructuredOutputsParams(**case.asked)))
        except UserError:
            if case.own:
                raise
        else:
            good.append(case)
    return good
