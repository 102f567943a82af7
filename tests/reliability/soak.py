"""Half an hour of mixed traffic, and a check for leaks afterwards: `make soak`, or

    python -m tests.reliability.soak --minutes 30

Chats, messages, responses and completions, short and long, plain and streamed, with shared prefixes, several
choices and logprobs;
answers with grammars, forced and offered calls, reasoning, recorded answers; vectors and rankings of an
encoder beside the chat model; clients that leave, wrong bodies, refused constraints, prompts that do not fit.
Prints a line a minute and a table at the end; exits with 1 where blocks are missing, memory grows by more
than `SLOPE_MIB` in ten minutes, descriptors have leaked, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from corepipe.engine.batch.masks import MOST_KEPT
from tests.reliability.disconnects import Held, idle, own_bytes
from tests.reliability.load_clients import RECORD, ROWS, Body, ask, bodies, held_bodies, path_of
from tests.servers import Served, default_model, engines, served, until
from tests.tiny_encoders import write_bert

SLOPE_MIB = 1.0
"""The most growth of memory in ten minutes, of server and engine together."""

WARM_SHARE = 0.25
"""The share of the time before memory counts: by then caches are full and blocks have been touched."""

SAMPLES = 120
"""The number of memory samples."""

MESSAGES = "/v1/messages"
MESSAGES_TOOL = {"name": "record", "input_schema": RECORD["parameters"]}
ENCODER, KNOWN = "vectors", "find the dog"
"""An encoder beside the chat model, and a text whose vector is known."""

CONTEXT = 1024
FLAGS = ("--max-model-len", CONTEXT, "--num-blocks", 96, "--max-num-seqs", 16, "--reasoning-parser", "qwen3")
"""Flags for a small KV cache, which is soon touched as a whole, and is often too small for all requests."""

MIB = 1 << 20
TEN_MINUTES = 600.0

FIRST_GRAMMARS, AT_ONCE = 8 * MOST_KEPT, 8
"""Grammars that are compiled first, and how many at a time.  The engine's memory for grammars grows to a
bound (those that are kept, and what their threads leave free between them), and most of it by these."""


@dataclass
class Soak:
    """The traffic and its results."""

    url: str
    model: str
    recorded: Mapping[str, bytes]
    known: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: bool = False

    async def fill(self) -> None:
        """Writes to every KV block and every row of logits, and compiles more grammars than are kept, on all
        compiling threads: memory that is touched for the first time is no leak."""
        body = {"model": self.model, "max_tokens": 64, "ignore_eos": True}
        prompts = [[number + 5] * (CONTEXT - 64) for number in range(8)]
        filling = [body | {"prompt": prompt} for prompt in prompts]
        filling.append(body | {"prompt": prompts[0], "prompt_logprobs": 0, "cache_salt": "whole"})
        rng = random.Random(4)
        async with aiohttp.ClientSession() as session:
            (self.known,) = await self._embedded(session, [KNOWN])
            asked = [ask(session, self.url, one) for one in filling]
            outcomes = await asyncio.gather(*asked)
            assert {outcome.kind for outcome in outcomes} == {"done"}, outcomes
            for _ in range(FIRST_GRAMMARS // AT_ONCE):
                fresh = [self._fresh_grammar(session, rng) for _ in range(AT_ONCE)]
                assert set(await asyncio.gather(*fresh)) == {None}

    async def run(self, workers: int, seed: int) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*[self._work(session, random.Random(seed + i)) for i in range(workers)])

    async def _work(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        acts: list[tuple[int, Act]] = [
            (6, self._answer), (3, self._chat), (3, self._leave), (2, self._wrong_body), (1, self._too_long),
            (3, self._held), (1, self._held_leaves), (1, self._fresh_grammar), (1, self._offer),
            (2, self._think), (1, self._refused_constraint), (3, self._recorded),
            (3, self._message), (3, self._response), (1, self._message_leaves), (1, self._count),
            (4, self._vectors), (2, self._ranks), (1, self._vectors_leave),
        ]  # fmt: skip
        weights, choices = zip(*acts, strict=True)
        while not self.stopped:
            act = rng.choices(choices, weights)[0]
            found = await act(session, rng)
            self.kinds[act.__name__.strip("_")] += 1
            if found is not None:
                self.wrong.append(f"{act.__name__}: {found}")

    async def _answer(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        outcome = await ask(session, self.url, self._body(rng))
        return None if outcome.kind == "done" else str(outcome)

    async def _chat(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        words = " ".join(f"word{rng.randrange(50)}" for _ in range(rng.randrange(1, 60)))
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": rng.randrange(1, 60),
            "logprobs": rng.random() < 0.3,
            "n": rng.choice([1, 1, 2]),
        }
        return await self._told(session, body, 200)

    async def _leave(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        await self._left(session, rng, self._body(rng) | {"max_tokens": 300})

    async def _held_leaves(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        await self._left(session, rng, rng.choice(held_bodies(self.model, 16)))

    async def _left(self, session: aiohttp.ClientSession, rng: random.Random, body: Body) -> None:
        """Leaves a stream after some of its pieces."""
        async with session.post(self.url + path_of(body), json=body | {"stream": True}) as answer:
            for _ in range(rng.randrange(4)):
                await answer.content.readany()
            answer.close()

    async def _told(self, session: aiohttp.ClientSession, body: Body, *wanted: int) -> str | None:
        """Returns an answer where its status is none of those wanted."""
        async with session.post(self.url + path_of(body), json=body) as answer:
            return None if answer.status in wanted else f"{answer.status}: {await answer.text()}"

    async def _wrong_body(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        wrong = rng.choice([b"{", b"[]", b'{"model": 1}', b'{"model": "%s", "prompt": ""}'])
        head = {"content-type": "application/json"}
        async with session.post(f"{self.url}/v1/completions", data=wrong, headers=head) as answer:
            return None if answer.status in (400, 404) else f"{answer.status} to {wrong!r}"

    async def _too_long(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        body = {"model": self.model, "prompt": [5] * rng.randrange(1024, 9000), "max_tokens": 1}
        return await self._told(session, body, 400)

    async def _held(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        outcome = await ask(session, self.url, rng.choice(held_bodies(self.model, 16)))
        return None if outcome.kind == "done" and outcome.text else str(outcome)

    async def _fresh_grammar(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Sends a new grammar: the memory of remembered grammars must be bounded."""
        words = [f"{rng.randrange(10**9):x}" for _ in range(rng.randrange(1, 200))]
        body = {"model": self.model, "prompt": "A word:", "max_tokens": 40}
        body["structured_outputs"] = {"choice": words}
        outcome = await ask(session, self.url, body)
        return None if outcome.text in words else str(outcome)

    async def _offer(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Sends tools that need not be called, with two choices."""
        body = self._asked(rng) | {"tools": [{"type": "function", "function": RECORD}], "n": 2}
        return await self._told(session, body, 200)

    async def _think(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Sends a prompt that has begun the reasoning; an answer with a schema follows that."""
        begun = {"role": "assistant", "content": "<think>\n"}
        body = self._asked(rng) | {"continue_final_message": True, "add_generation_prompt": False}
        body["messages"] = [*body["messages"], begun]
        if rng.random() < 0.5:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ROWS}}}
        outcome = await ask(session, self.url, body)
        return None if outcome.kind == "done" else str(outcome)

    async def _message(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Sends a message, with tools or a stop sequence or neither; a stream ends with its last event."""
        body = self._asked(rng) | rng.choice([{}, {"tools": [MESSAGES_TOOL]}, {"stop_sequences": ["e"]}])
        if "tools" in body and rng.random() < 0.5:
            body |= {"tool_choice": {"type": "any"}, "max_tokens": 300}
        async with session.post(f"{self.url}{MESSAGES}", json=body) as answer:
            text = await answer.text()
        last = '{"type":"message_stop"}' if body["stream"] else '"service_tier":"standard"}}'
        return None if answer.status == 200 and text.rstrip().endswith(last) else f"{answer.status}: {text}"

    async def _response(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Asks for a response that is not kept, with a forced call or without."""
        asked = self._asked(rng)
        body = {"model": self.model, "input": asked["messages"], "stream": asked["stream"], "store": False}
        body["max_output_tokens"] = asked["max_tokens"]
        if rng.random() < 0.3:
            body |= {"tools": [{"type": "function", **RECORD}], "tool_choice": "required"}
        async with session.post(f"{self.url}/v1/responses", json=body) as answer:
            text = await answer.text()
        ended = ("response.completed", "response.incomplete") if body["stream"] else ('"status":"',)
        return (
            None if answer.status == 200 and any(one in text for one in ended) else f"{answer.status}: {text}"
        )

    async def _message_leaves(self, session: aiohttp.ClientSession, rng: random.Random) -> None:
        body = self._asked(rng) | {"max_tokens": 300, "stream": True}
        async with session.post(f"{self.url}{MESSAGES}", json=body) as answer:
            for _ in range(rng.randrange(4)):
                await answer.content.readany()
            answer.close()

    async def _count(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Counts the tokens of a prompt, which is as long as that of its answer."""
        asked = self._asked(rng)
        body = {name: asked[name] for name in ("model", "messages")}
        async with session.post(f"{self.url}{MESSAGES}/count_tokens", json=body) as answer:
            counted = (await answer.json())["input_tokens"]
        async with session.post(f"{self.url}{MESSAGES}", json=body | {"max_tokens": 1}) as answer:
            usage = (await answer.json())["usage"]
        told = sum(usage[name] for name in usage if "input_tokens" in name)
        return None if counted == told else f"{counted} tokens were counted, and {told} read"

    async def _refused_constraint(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        wrong = rng.choice([{"regex": "("}, {"regex": "a{1000}{1000}{1000}"}, {"json": {"not": {}}}])
        body = {"model": self.model, "prompt": "a", "structured_outputs": wrong}
        return await self._told(session, body, 400, 429)

    async def _recorded(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        body = rng.choice(list(self.recorded))
        found = await raw(session, self.url, json.loads(body))
        right = self.recorded[body]
        return None if found == right else f"{found!r} where {right!r} was recorded"

    async def _vectors(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        """Checks that a text among others has the same vector as alone."""
        texts = [*(some_words(rng, 20) for _ in range(rng.choice([0, 1, 7, 63]))), KNOWN]
        found = await self._embedded(session, texts)
        return None if len(found) == len(texts) and found[-1] == self.known else "another vector"

    async def _ranks(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        texts = [*(some_words(rng, 20) for _ in range(rng.randrange(20))), KNOWN]
        body = {"model": ENCODER, "query": KNOWN, "documents": texts, "top_n": 1}
        async with session.post(f"{self.url}/rerank", json=body) as answer:
            best = (await answer.json())["results"][0]
        return None if texts[best["index"]] == KNOWN else f"{texts[best['index']]} is nearest"

    async def _vectors_leave(self, session: aiohttp.ClientSession, rng: random.Random) -> str | None:
        body = {"model": ENCODER, "input": [some_words(rng, 20) for _ in range(500)]}
        with contextlib.suppress(TimeoutError):
            limit = aiohttp.ClientTimeout(total=rng.random() / 10)
            async with session.post(f"{self.url}/v1/embeddings", json=body, timeout=limit) as answer:
                answer.close()
        return None

    async def _embedded(self, session: aiohttp.ClientSession, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": ENCODER, "input": texts}
        async with session.post(f"{self.url}/v1/embeddings", json=body) as answer:
            told = await answer.json()
        return [one["embedding"] for one in told.get("data", [])]

    def _asked(self, rng: random.Random) -> Body:
        words = " ".join(f"word{rng.randrange(50)}" for _ in range(rng.randrange(1, 30)))
        asked = {"model": self.model, "messages": [{"role": "user", "content": words}]}
        return {**asked, "max_tokens": rng.randrange(1, 120), "stream": rng.random() < 0.5}

    def _body(self, rng: random.Random) -> Body:
        """Makes a body; half of them share a prefix with others."""
        shared = list(range(100, 100 + rng.choice([0, 64, 200])))
        own = [rng.randrange(3, 1000) for _ in range(int(rng.lognormvariate(4.0, 1.0)) % 700 + 1)]
        return {
            "model": self.model,
            "prompt": [*shared, *own],
            "max_tokens": min(120, int(rng.lognormvariate(3.0, 1.0)) + 1),
            "stream": rng.random() < 0.6,
            "temperature": rng.choice([0, 1.0]),
        }


def some_words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(("the", "cat", "dog", "sat", "find"), k=rng.randrange(1, most)))


Act = Callable[[aiohttp.ClientSession, random.Random], Awaitable[str | None]]


@dataclass(frozen=True)
class Sample:
    """A sample: seconds since the start; memory in MiB without mapped files, of the server, and of the
    engines of both models with their spares."""

    seconds: float
    server: float
    engine: float
    fds: int

    @classmethod
    def of(cls, server: Served, began: float) -> Sample:
        held = Held.by(server)
        of_engines = sum(own_bytes(one.pid) for one in engines(server.process.pid))
        memory = own_bytes(server.process.pid) / MIB
        return cls(time.monotonic() - began, memory, of_engines / MIB, held.fds + held.engine_fds)


def slope(samples: Sequence[Sample], read: Callable[[Sample], float]) -> float:
    """Returns the growth in MiB in ten minutes, by least squares, after the warm share."""
    kept = [s for s in samples if s.seconds >= WARM_SHARE * samples[-1].seconds]
    line = statistics.linear_regression([s.seconds for s in kept], [read(s) for s in kept])
    return line.slope * TEN_MINUTES


async def raw(session: aiohttp.ClientSession, url: str, body: Body) -> bytes:
    async with session.post(url + path_of(body), json=body) as answer:
        return await answer.read()


async def record(server: Served) -> dict[str, bytes]:
    """Records bodies as JSON, and their answers."""
    asked = [*bodies(server.model, 8, (20, 60)), *held_bodies(server.model, 8)]
    async with aiohttp.ClientSession() as session:
        return {json.dumps(body): await raw(session, server.url, body) for body in asked}


async def soak(
    server: Served, recorded: Mapping[str, bytes], minutes: float, workers: int
) -> tuple[Soak, list[Sample]]:
    """Returns the traffic, and the samples taken meanwhile."""
    traffic = Soak(server.url, server.model, recorded)
    await traffic.fill()
    began, samples = time.monotonic(), []
    work = asyncio.create_task(traffic.run(workers, seed=5))
    told = 0
    for _ in range(SAMPLES):
        await asyncio.sleep(60 * minutes / SAMPLES)
        samples.append(Sample.of(server, began))
        if samples[-1].seconds >= 60 * (told + 1):
            told += 1
            print(
                f"{told} min: {traffic.kinds.total()} requests, {len(traffic.wrong)} wrong, "
                f"{samples[-1]}", file=sys.stderr
            )  # fmt: skip
    traffic.stopped = True
    await work
    return traffic, samples


def verdict(server: Served, traffic: Soak, samples: Sequence[Sample]) -> tuple[str, bool]:
    """Returns the table, and whether all values are right."""
    emptied = until(lambda: idle(server))
    total = server.metric("corepipe_kv_blocks")
    held, cached = server.metric("corepipe_kv_blocks_held"), server.metric("corepipe_kv_blocks_cached")
    preempted = server.metric("vllm:num_preemptions_total")
    slopes = [slope(samples, read) for read in (lambda s: s.server, lambda s: s.engine)]
    last, fds = samples[-1], [sample.fds for sample in samples]
    restarts = server.metric("corepipe_engine_restarts_total")
    rows = [
        ("requests", ", ".join(f"{count} {kind}" for kind, count in traffic.kinds.most_common())),
        ("wrong", f"{len(traffic.wrong)}"),
        ("preemptions, restarts", f"{preempted:.0f}, {restarts:.0f}"),
        ("KV blocks", f"{total - held - cached:.0f} free, {cached:.0f} cached, {held:.0f} held"),
        ("server MiB, slope in 10 min", f"{last.server:.1f}, {slopes[0]:+.2f}"),
        ("engines MiB, slope in 10 min", f"{last.engine:.1f}, {slopes[1]:+.2f}"),
        ("descriptors, least and most", f"{min(fds)}, {max(fds)}"),
    ]  # fmt: skip
    fine = emptied and held == 0 and not traffic.wrong and sum(slopes) < SLOPE_MIB and restarts == 0
    return "\n".join([f"{name:32}{value}" for name, value in rows] + traffic.wrong[:5]), fine


def main() -> int:
    parser = argparse.ArgumentParser(description="Mixed traffic for a while, and what is left of it.")
    parser.add_argument("--model", type=Path, help="default: SmolLM2-135M-Instruct")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=12)
    args = parser.parse_args()
    model = args.model or default_model()
    with TemporaryDirectory() as folder:
        also = ("--also", f"{ENCODER}={write_bert(Path(folder) / 'encoder')}")
        tapes = Path(folder) / "tapes"
        with served(model, *FLAGS, "--record", tapes, anew=True) as server:
            recorded = asyncio.run(record(server))
            server.end()
        with served(model, *FLAGS, *also, "--replay", tapes, "--replay-else", "compute", anew=True) as server:
            traffic, samples = asyncio.run(soak(server, recorded, args.minutes, args.workers))
            shown, fine = verdict(server, traffic, samples)
            errors = [line for line in server.stderr if "Traceback" in line]
    print(shown)
    print("passed" if fine and not errors else "FAILED")
    return int(not fine or bool(errors))


if __name__ == "__main__":
    sys.exit(main())
