"""Requests to a server over HTTP, and the speed of its answers.

Prompts are random token ids, which no prefix cache has seen (but those that a work shares) and no tokenizer
splits.  All requests stream greedily and ignore eos.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass

import aiohttp
import msgspec

TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Work:
    """`requests` of `prompt` tokens in and `output` tokens out, `streams` at a time; each prompt begins
    with `shared` tokens, the same for all."""

    prompt: int
    output: int
    streams: int
    requests: int
    shared: int = 0
    first_token: bool = False
    """True: measured by the median time to the first token; otherwise by output tokens per second."""


async def answer(
    session: aiohttp.ClientSession, url: str, model: str, prompt: list[int], output: int
) -> float:
    """Returns the seconds to the first event of a streamed completion, which is read to its end; raises
    RuntimeError for an error, or an answer shorter than requested."""
    body = {"model": model, "prompt": prompt, "max_tokens": output, "temperature": 0, "stream": True}
    options = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    start, first, tokens = time.perf_counter(), 0.0, 0
    async with session.post(f"{url}/v1/completions", json=body | options) as response:
        response.raise_for_status()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.perf_counter() - start
            if b'"usage"' in line and (usage := msgspec.json.decode(line[6:]).get("usage")):
                tokens = usage["completion_tokens"]
    if tokens != output:
        raise RuntimeError(f"{url}: {tokens} tokens where {output} were asked for")
    return first


async def speed(url: str, model: str, work: Work, vocabulary: range) -> float:
    """Returns output tokens per second, or first tokens per second where the first token is measured.  A
    short answer precedes it."""
    common = random.choices(vocabulary, k=work.shared)
    prompts = [common + random.choices(vocabulary, k=work.prompt) for _ in range(work.requests)]
    firsts: list[float] = []
    # llama.cpp's server closes what it has answered on.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await answer(session, url, model, random.choices(vocabulary, k=4), 2)

        async def stream() -> None:
            while prompts:
                firsts.append(await answer(session, url, model, prompts.pop(), work.output))

        start = time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(work.streams)))
        seconds = time.perf_counter() - start
    return 1 / statistics.median(firsts) if work.first_token else work.requests * work.output / seconds
