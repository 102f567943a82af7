"""Clients of a real server that record the outcome of each request: exactly one, or it is a fault."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.servers import PATIENCE_SECONDS

Body = dict[str, Any]

PACE = ("--clock", "device", "--instance", "inf1.xlarge", "--dtype", "fp32", "--time-scale")
"""Flags of a pace of 0.7 ms a token at scale 1, which is to follow; any host can keep it at 40."""

TIMEOUT = aiohttp.ClientTimeout(total=PATIENCE_SECONDS)


@dataclass(slots=True)
class Outcome:
    """The outcome of a request.

    kind: "done", "refused" (429), "unavailable" (503), "expired" (504), "error" (an event in a stream), or
    "broken": no outcome that a client could rely on.
    device: the times on the emulated device, where the body asked for `device_metrics`.
    """

    kind: str = "broken"
    text: str = ""
    detail: str = ""
    seconds: float = 0.0
    first_seconds: float | None = None
    retry_after: int | None = None
    device: dict[str, Any] = field(default_factory=dict)


KINDS = {200: "done", 429: "refused", 503: "unavailable", 504: "expired"}


def path_of(body: Body) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


async def ask(session: aiohttp.ClientSession, url: str, body: Body) -> Outcome:
    """Requests a completion, or a chat where the body has messages."""
    outcome, began = Outcome(), time.perf_counter()
    try:
        async with session.post(url + path_of(body), json=body, timeout=TIMEOUT) as answer:
            if answer.status == 200 and body.get("stream"):
                await _follow(answer, outcome, began)
            else:
                _read(answer, await answer.json(), outcome)
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        outcome.kind, outcome.detail = "broken", repr(error)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _read(answer: aiohttp.ClientResponse, document: Any, outcome: Outcome) -> None:
    outcome.kind = KINDS.get(answer.status, "broken")
    if answer.status == 200:
        outcome.text = said(document["choices"][0])
        outcome.device = document.get("corepipe", {})
    else:
        outcome.detail = f"{answer.status} {document}"
        outcome.retry_after = int(answer.headers["retry-after"]) if "retry-after" in answer.headers else None


def said(choice: dict[str, Any]) -> str:
    """Returns the content of a choice, whole or of a chunk, without the ids of calls, which are random."""
    message = choice.get("message", choice.get("delta"))
    if message is None:
        return choice["text"]
    text = (message.get("reasoning") or "") + (message.get("content") or "")
    for call in message.get("tool_calls", ()):
        name = call["function"].get("name")
        text += (f"\n{name}: " if name else "") + call["function"]["arguments"]
    return text


async def _follow(answer: aiohttp.ClientResponse, outcome: Outcome, began: float) -> None:
    """Reads a stream to its end; anything after the end of its answer makes it broken."""
    finish = None
    async for raw in answer.content:
        line = raw.decode().strip()
        if not line:
            continue
        if outcome.kind != "broken":
            outcome.kind, outcome.detail = "broken", f"more after the end: {line}"
            return
        if outcome.first_seconds is None:
            outcome.first_seconds = time.perf_counter() - began
        if line == "data: [DONE]":
            outcome.kind = "done" if finish else "broken"
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            outcome.kind, outcome.detail = "error", str(event)
            continue
        outcome.text += said(event["choices"][0])
        finish = event["choices"][0]["finish_reason"] or finish
        outcome.device = event.get("corepipe", outcome.device)


@dataclass
class LoadClients:
    """Workers that send random bodies, one after the other, until they are stopped.

    `expected[i]` is the answer of an undisturbed server to `bodies[i]`.
    """

    url: str
    bodies: Sequence[Body]
    expected: Sequence[str]
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: bool = False

    async def work(self, workers: int, seed: int) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*[self._worker(session, random.Random(seed + i)) for i in range(workers)])

    async def answered(self, count: int) -> None:
        """Waits for `count` more whole answers."""
        wanted = self.outcomes["done"] + count
        while self.outcomes["done"] < wanted:
            await asyncio.sleep(0.01)

    async def _worker(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        while not self.stopped:
            at = rng.randrange(len(self.bodies))
            outcome = await ask(session, self.url, self.bodies[at])
            self.outcomes[outcome.kind] += 1
            right = self.expected[at]
            whole = outcome.text == right if outcome.kind == "done" else right.startswith(outcome.text)
            if outcome.kind == "broken" or not whole:
                self.wrong.append(f"body {at}: {outcome}")
            if outcome.kind not in ("done", "error"):
                await asyncio.sleep(rng.uniform(0.05, 0.15))


async def answers(url: str, bodies: Sequence[Body]) -> list[str]:
    """Returns the server's answer to each body, one after the other."""
    async with aiohttp.ClientSession() as session:
        outcomes = [await ask(session, url, body) for body in bodies]
    assert all(outcome.kind == "done" for outcome in outcomes), outcomes
    return [outcome.text for outcome in outcomes]


def bodies(model: str, count: int, tokens: tuple[int, int], seed: int = 1) -> list[Body]:
    """Makes requests: greedy and seeded, whole and streamed, with and without penalties and bad words."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        body: Body = {
            "model": model,
            "prompt": [rng.randrange(3, 200) for _ in range(rng.randrange(2, 100))],
            "max_tokens": rng.randrange(*tokens),
            "ignore_eos": True,
            "stream": number % 4 != 3,
            "temperature": 0,
        }
        if number % 3 == 1:
            body |= {"temperature": 1.0, "seed": number, "presence_penalty": 0.5}
        elif number % 3 == 2:
            body |= {"bad_words": ["a", " the", "in", "on"]}
        made.append(body)
    return made


ROWS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9999},
    "minItems": 20,
    "maxItems": 30,
}
"""Bodies with long answers, whose end the model chooses."""
RECORD = {
    "name": "record",
    "parameters": {"type": "object", "properties": {"rows": ROWS}, "required": ["rows"]},
}


def held_bodies(model: str, count: int) -> list[Body]:
    """Makes requests with grammars and forced calls: greedy and seeded, whole and streamed."""
    named = {"type": "function", "function": {"name": "record"}}
    kinds: list[Body] = [
        {"structured_outputs": {"json": ROWS}},
        {"tools": [{"type": "function", "function": RECORD}], "tool_choice": "required"},
        {"structured_outputs": {"regex": r"([a-z]{2,9} ){20,40}"}, "bad_words": ["e"]},
        {"tools": [{"type": "function", "function": RECORD}], "tool_choice": named},
    ]
    made = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        words = f"{number}: row upon row."
        asked = {"messages": [{"role": "user", "content": words}]} if "tools" in kind else {"prompt": words}
        drawn = {"temperature": 0.9, "seed": number} if number // 2 % 2 else {"temperature": 0}
        stream = (number + number // len(kinds)) % 2 == 0
        more = {"max_tokens": 400, "parallel_tool_calls": False} if "tools" in kind else {"max_tokens": 300}
        made.append({"model": model, **kind, **asked, **drawn, **more, "stream": stream})
    return made


async def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> bool:
    """Polls until a condition is true.  Returns False if it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
