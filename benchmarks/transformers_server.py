"""transformers behind the routes that works.py asks, as a peer of side_by_side.py.

Needs torch and transformers.

    python benchmarks/transformers_server.py CHECKPOINT --port 8000 [--dtype bfloat16]

Greedy, from prompts of token ids alone.  Requests that come together and have prompts of one length are one
batch, as `generate` would have them, through the model's own cache; who comes later waits for its end.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, PreTrainedModel

GATHER_SECONDS = 0.02
"""Seconds for which the first request of a batch waits for others."""


@dataclass
class Request:
    prompt: list[int]
    output: int
    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)


@torch.inference_mode()
def answer(model: PreTrainedModel, prompts: list[list[int]]) -> Iterator[list[int]]:
    """Yields the next token of each prompt of a batch, without end."""
    ids, kept = torch.tensor(prompts), {}
    while True:
        out = model(ids, use_cache=True, logits_to_keep=1, **kept)
        if "cache_params" in out:
            kept = {"cache_params": out.cache_params}
        else:
            kept = {"past_key_values": out.past_key_values}
        ids = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        yield ids[:, 0].tolist()


class Batches:
    """Waiting requests, and the loop that answers them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._waiting = model, asyncio.Queue[Request]()

    def add(self, request: Request) -> None:
        self._waiting.put_nowait(request)

    async def run(self) -> None:
        while True:
            first = await self._waiting.get()
            await asyncio.sleep(GATHER_SECONDS)
            come = [first, *(self._waiting.get_nowait() for _ in range(self._waiting.qsize()))]
            come.sort(key=lambda request: len(request.prompt))
            for _, batch in itertools.groupby(come, key=lambda request: len(request.prompt)):
                await self._answer(list(batch))

    async def _answer(self, batch: list[Request]) -> None:
        steps = answer(self._model, [request.prompt for request in batch])
        for number in range(max(request.output for request in batch)):
            tokens = await asyncio.to_thread(next, steps)
            for request, token in zip(batch, tokens, strict=True):
                if number < request.output:
                    request.tokens.put_nowait(token)


async def events(request: Request) -> AsyncIterator[bytes]:
    for _ in range(request.output):
        token = await request.tokens.get()
        yield b'data: {"choices": [{"index": 0, "text": " %d"}]}\n\n' % token
    yield b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n' % request.output


def app(batches: Batches) -> web.Application:
    async def completions(asked: web.Request) -> web.StreamResponse:
        body = await asked.json()
        request = Request(body["prompt"], body["max_tokens"])
        batches.add(request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(asked)
        async for event in events(request):
            await response.write(event)
        return response

    async def health(_asked: web.Request) -> web.Response:
        return web.Response()

    async def models(_asked: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "model"}]})

    async def run(_app: web.Application) -> AsyncIterator[None]:
        loop = asyncio.create_task(batches.run())
        yield
        loop.cancel()

    made = web.Application()
    made.cleanup_ctx.append(run)
    made.add_routes(
        [web.post("/v1/completions", completions), web.get("/health", health), web.get("/v1/models", models)]
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=getattr(torch, args.dtype)).eval()
    web.run_app(app(Batches(model)), host="127.0.0.1", port=args.port, print=None)


if __name__ == "__main__":
    main()
