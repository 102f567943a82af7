from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import LoadProgress, Output, Stats
from corepipe.errors import UserError
from corepipe.serving.supervision.client import OutputStream
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient
from tests.engine.engine_support import VOCAB, submit

CONFIG = EngineConfig(model="none", seed=3)
ROOT = Path(__file__).parents[3]


def child(assemble: str, begin: str = "") -> tuple[str, ...]:
    """Returns a command that runs the engine's process with `assemble` of the tests in place of the real one;
    before that, when all is imported, it runs a line of Python."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from corepipe.engine.process.session import attend\n"
        f"from tests.engine.engine_support import {assemble} as assemble\n"
        f"{begin}\n"
        "sys.exit(attend(int(sys.argv[1]), int(sys.argv[2]), assemble))"
    )
    return sys.executable, "-c", code


def process_client(assemble: str = "assemble_null") -> ProcessClient:
    return ProcessClient(CONFIG, child(assemble))


async def collect(stream: OutputStream) -> list[Output]:
    return [output async for output in stream]


@asynccontextmanager
async def started(client: ProcessClient) -> AsyncIterator[ProcessClient]:
    """Yields a client whose engine has loaded, and ends both."""
    await client.start()
    try:
        yield client
    finally:
        await client.close()
    assert not client.alive


async def test_answers_come_as_streams() -> None:
    async with started(process_client()) as client:
        assert client.alive
        streams = [client.submit(submit(f"r{i}", prompt=i + 1, max_tokens=20)) for i in range(12)]
        for outputs in await asyncio.gather(*map(collect, streams)):
            assert sum(len(output.tokens) for output in outputs) == 20
            assert outputs[-1].finish_reason == "length"
            assert outputs[-1].device is not None


async def test_refusals_come_as_the_only_news() -> None:
    async with started(process_client()) as client:
        (output,) = await collect(client.submit(submit("a", prompt=[VOCAB])))
        assert (output.finish_reason, output.error_kind) == ("error", "invalid")


async def test_an_abort_ends_the_stream() -> None:
    async with started(process_client()) as client:
        stream = client.submit(submit("a", max_tokens=250))
        client.abort(["a", "unknown"])
        outputs = await collect(stream)
        assert outputs[-1].finish_reason in {"abort", "length"}


async def test_closing_a_stream_frees_its_request() -> None:
    async with started(process_client()) as client:
        stream = client.submit(submit("a", max_tokens=250))
        await anext(stream)
        await stream.aclose()
        await collect(client.submit(submit("b")))
        while not client.stats or client.stats[0].running or not client.stats[0].steps:
            await asyncio.sleep(0.001)  # the very first stats are of an engine that has done nothing
        assert client.stats[0].blocks_held == 0


async def test_stats_are_told_once_and_the_latest_kept() -> None:
    async with started(process_client()) as client:
        told: list[Stats] = []
        client.on_stats = told.append
        await collect(client.submit(submit("a", prompt=5, max_tokens=8)))
        while not told or told[-1].running or told[-1].steps < 8:
            await asyncio.sleep(0.001)
        assert sum(sum(stats.iteration_tokens) for stats in told) == 5 + 7
        assert client.stats == [told[-1]]
        assert (told[-1].steps, told[-1].generation_tokens, told[-1].prompt_tokens) == (8, 8, 5)


async def test_closing_the_client_ends_open_streams() -> None:
    client = process_client()
    await client.start()
    stream = client.submit(submit("a", max_tokens=250))
    await client.close()
    assert (await collect(stream))[-1].finish_reason in {"abort", "length", "error"}
    (output,) = await collect(client.submit(submit("b")))
    assert (output.finish_reason, output.error) == ("error", "engine died")


async def test_progress_is_told_while_loading() -> None:
    told: list[LoadProgress] = []
    client = process_client()
    ready = await client.start(told.append)
    await client.close()
    assert [progress.done for progress in told] == [0.5, 1.0]
    assert ready.max_model_len == 256


@pytest.mark.parametrize(
    ("assemble", "error", "message", "code"),
    [
        ("assemble_refused", UserError, "no such model", 2),
        ("assemble_broken", EngineError, "ZeroDivisionError", 1),
        ("assemble_gone", EngineError, "while it was loading", 9),
    ],
)
async def test_a_failed_start_says_why(
    assemble: str, error: type[Exception], message: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    client = process_client(assemble)
    with pytest.raises(error, match=message):
        await client.start()
    await client.close()
    assert client._engines.child.returncode == code
