"""Clients that connect and leave, in every phase of a request, and the resources that the server keeps.

Descriptors, memory and blocks must be back at their base afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.reliability.load_clients import Body, answers
from tests.servers import Served, until

AT_ONCE = 16

SMALL = ("--max-model-len", 1024, "--num-blocks", 64)
"""Flags of a server that soon has touched all memory of its KV cache."""

PROMPTS = 4
"""The number of prompts as long as the context: more than that cache holds."""

SPARE_FDS = 2
SPARE_TASKS = 2
SPARE_BYTES = 32 << 20

Leave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Phase:
    """The part of a request that is sent, and when the client leaves after it."""

    body: Body
    leave: Leave
    part: float = 1.0
    """The share of the request that is sent."""


def phases(model: str, context: int) -> dict[str, Phase]:
    """Returns the phases; a long prompt takes several steps, and many tokens decode for a long time."""
    room = context // 4
    long = {"model": model, "prompt": [9] * 4, "max_tokens": 2 * room, "ignore_eos": True}
    prompt = {"model": model, "prompt": list(range(5, 5 + 2 * room)), "max_tokens": 4}
    return {
        "headers": Phase(long, _at_once, part=0.1),
        "body": Phase(long, _at_once, part=0.9),
        "queued": Phase(long | {"n": 2}, _at_once),
        "prefill": Phase(prompt, _soon),
        "prefill, streamed": Phase(prompt | {"stream": True}, _soon),
        "before the first byte": Phase(long, _soon),
        "decode": Phase(long | {"stream": True}, _after_the_first_byte),
        "decode, later": Phase(long | {"stream": True}, _after_a_while),
    }


async def _at_once(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0)


async def _soon(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(random.random() * 0.02)


async def _after_the_first_byte(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def _after_a_while(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    for _ in range(6):
        await reader.readline()


async def leave_early(url: str, cycles: int, model: str, context: int) -> Counter[str]:
    """Runs `cycles` clients, a few at a time, half of which reset their connections; counts them by phase."""
    address, found = urlsplit(url), phases(model, context)
    names = [name for name in found for _ in (0, 1)]
    done: Counter[str] = Counter()
    gate = asyncio.Semaphore(AT_ONCE)

    async def cycle(number: int) -> None:
        name = names[number % len(names)]
        async with gate:
            await _visit(address.hostname or "", address.port or 0, found[name], reset=bool(number % 2))
        done[name] += 1

    await asyncio.gather(*[cycle(number) for number in range(cycles)])
    return done


async def _visit(host: str, port: int, phase: Phase, *, reset: bool) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    content = json.dumps(phase.body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    request = head.encode() + content
    with contextlib.suppress(OSError):
        writer.write(request[: round(len(request) * phase.part)])
        await phase.leave(reader, writer)
    if reset:
        linger = struct.pack("ii", 1, 0)  # no lingering: close sends RST
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def own_bytes(pid: int) -> int:
    """Returns the resident memory without mapped files, since weights belong to the page cache (proc(5))."""
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@dataclass(frozen=True)
class Held:
    """The resources that a server and its engine hold while they are idle."""

    fds: int
    engine_fds: int
    own: int
    engine_own: int
    """The engine's own memory, in bytes."""
    tasks: int
    """The tasks of the server's event loop."""

    @classmethod
    def by(cls, server: Served) -> Held:
        process, engine = psutil.Process(server.process.pid), server.engine()
        return cls(
            process.num_fds(),
            engine.num_fds(),
            own_bytes(process.pid),
            own_bytes(engine.pid),
            int(server.metric("corepipe_event_loop_tasks")),
        )

    def excess(self, base: Held) -> list[str]:
        """Returns what is more than at the base."""
        return [
            f"{name}: {getattr(base, name)} -> {getattr(self, name)}"
            for name, spare in (
                ("fds", SPARE_FDS),
                ("engine_fds", SPARE_FDS),
                ("own", SPARE_BYTES),
                ("engine_own", SPARE_BYTES),
                ("tasks", SPARE_TASKS),
            )
            if getattr(self, name) > getattr(base, name) + spare
        ]


def idle(server: Served) -> bool:
    """Tells whether nothing runs, waits or is held."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "corepipe_kv_blocks_held")
    return all(server.metric(name) == 0 for name in names)


def visited(server: Served, cycles: int) -> tuple[Counter[str], list[str]]:
    """Returns the number of clients that left by phase, and what is wrong afterwards."""
    card = server.get("/v1/models").json()["data"][0]
    model, context = card["id"], card["max_model_len"]
    golden = [{"model": model, "prompt": [7, 8, 9], "max_tokens": 24, "temperature": 0}]

    async def run(count: int) -> Counter[str]:
        return await leave_early(server.url, count, model, context)

    before = asyncio.run(answers(server.url, golden))
    # A warm-up of buffers and all KV blocks: clients that leave early may touch the last block much later.
    long = [{"model": model, "prompt": [9 + n] * (context - 8), "max_tokens": 8} for n in range(PROMPTS)]
    asyncio.run(answers(server.url, long))
    asyncio.run(run(6 * AT_ONCE))
    assert until(lambda: idle(server))
    base = Held.by(server)
    done = asyncio.run(run(cycles))
    wrong = [] if until(lambda: idle(server)) else ["something runs, waits or is held for ever"]
    until(lambda: not Held.by(server).excess(base))
    wrong += Held.by(server).excess(base)
    if asyncio.run(answers(server.url, golden)) != before:
        wrong.append("a greedy answer has changed")
    print(f"before {base}\nafter  {Held.by(server)}")
    return done, wrong
