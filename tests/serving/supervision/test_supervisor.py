"""Engine processes that die, hang and fail; a token is a function of the last one and its position."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import uvloop

from corepipe.engine.channel import encode_frame
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import LoadProgress, Output, Outputs, Ready
from corepipe.serving.supervision import child as child_module
from corepipe.serving.supervision import supervisor
from corepipe.serving.supervision.child import EngineChild, HangLimits, ThreadStates
from corepipe.serving.supervision.engine_process import EngineError
from corepipe.serving.supervision.supervisor import ProcessClient
from corepipe.signals import SHARED
from tests.bench.virtual_time import VirtualTimeLoop
from tests.engine.engine_support import DEADLY, ENDLESS, FAULTY, LOAD_CPU_SECONDS, floats, submit
from tests.serving.supervision.test_client import child, collect, started

CONFIG = EngineConfig(model="none", max_num_seqs=4)
LIMIT_SECONDS = 300.0
"""The time after which a test hangs."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a hang be noticed after two beats."""
    monkeypatch.setattr(child_module, "SERVING", HangLimits(still=0.5, busy=20.0))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the pauses before an engine is started."""
    monkeypatch.setattr(supervisor, "MOST_PAUSE", 0.0)


def loads_within(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Limits the time of a load without work, or without a report of progress."""
    monkeypatch.setattr(supervisor, "LEAST_LOAD_SECONDS", seconds)
    monkeypatch.setattr(supervisor, "LOAD_RATIO", 0.0)


PATIENT = HangLimits(still=1e9, busy=1e9)
"""Limits by which nothing counts as a hang."""


def struck(number: signal.Signals, step: int) -> EngineConfig:
    """Makes the config of an engine that sends itself a signal in a step: it is lost there on any machine."""
    return CONFIG.model_copy(update={"model": f"{number.name}@{step}"})


@asynccontextmanager
async def supervised(
    assemble: str = "assemble_fragile",
    config: EngineConfig = CONFIG,
    *,
    spares: bool = False,
    **more: Any,
) -> AsyncIterator[ProcessClient]:
    """Yields a client whose engine has loaded, and ends both.

    spares: with a spare engine, as in a server; without them no process does imports that are not needed.
    """
    client = ProcessClient(config, child(assemble), **more)
    if not spares:
        client._engines.prepare = lambda: None  # type: ignore[method-assign]
    async with started(client):
        yield client
    assert not client.restarting


async def restarted(client: ProcessClient, times: int = 1) -> None:
    while sum(client.restarts.values()) < times or not client.alive:
        await asyncio.sleep(0.005)


def signalled(client: ProcessClient, number: signal.Signals = signal.SIGKILL) -> None:
    assert client.engine_pid is not None
    os.kill(client.engine_pid, number)


async def next_is(client: ProcessClient, assemble: str) -> None:
    """Makes the next engine load with another `assemble`."""
    if client._engines.spare is not None:
        await client._engines.spare.kill()
    client._engines.command = child(assemble)


async def spare_is(client: ProcessClient, assemble: str) -> None:
    """Does what `next_is` does; the imports, which report no progress, are done when it is started."""
    await next_is(client, assemble)
    client._engines.command = child(assemble, begin="import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    client._engines.prepare()
    assert client._engines.spare is not None
    spare = psutil.Process(client._engines.spare.pid)
    while spare.status() != psutil.STATUS_STOPPED:
        await asyncio.sleep(0.005)


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def ends_of(outputs: list[Output]) -> list[str | None]:
    return [output.finish_reason for output in outputs if output.finish_reason is not None]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "killed"),
        (signal.SIGSTOP, "hung"),
        pytest.param(signal.SIGSEGV, "crashed", marks=pytest.mark.slow),
    ],
)
async def test_answers_go_on_where_they_were(number: signal.Signals, reason: str) -> None:
    """There are more requests than seats: some wait when the engine is lost, in its 60th step."""
    submits = [submit(f"r{i}", prompt=i + 1, max_tokens=40) for i in range(8)]

    async def answers(client: ProcessClient) -> list[list[Output]]:
        news = await asyncio.gather(*[collect(client.submit(s)) for s in submits])
        assert list(map(ends_of, news)) == [["length"]] * 8
        return news

    async with supervised() as client:
        expected = await answers(client)
    async with supervised(config=struck(number, 60), spares=number == signal.SIGKILL) as client:
        news = await answers(client)
        assert client.restarts == {reason: 1}
    assert list(map(tokens_of, news)) == list(map(tokens_of, expected))
    assert max(output.cached for outputs in news for output in outputs) == 0
    assert None in [outputs[-1].device for outputs in news], "the time of another engine is not a request's"


async def test_counters_go_on_and_nothing_is_held() -> None:
    async with supervised() as client:
        await collect(client.submit(submit("a", max_tokens=30)))
        before = client.stats[0]
        loaded: list[Ready] = []
        client.on_ready = loaded.append
        signalled(client)
        await restarted(client)
        assert len(loaded) == 1
        await collect(client.submit(submit("b", max_tokens=20)))
        after = client.stats[0]
        assert after.generation_tokens == before.generation_tokens + 20 == 50
        assert after.steps > before.steps
        assert (after.running, after.blocks_held) == (0, 0)


async def test_an_answer_goes_on_as_often_as_an_engine_gets_on_with_it() -> None:
    """Each engine is killed in its twelfth step."""
    answers = []
    for config in (CONFIG, struck(signal.SIGKILL, 12)):
        async with supervised(config=config) as client:
            answers.append(await collect(client.submit(submit("a", max_tokens=30))))
    assert client.restarts["killed"] >= 30 // 12
    assert [ends_of(news) for news in answers] == [["length"]] * 2
    assert tokens_of(answers[0]) == tokens_of(answers[1])


async def test_engines_that_were_well_are_replaced_however_often_they_are_lost(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are lost as soon as they have loaded, more often than engines in a row may fail to load."""
    monkeypatch.setattr(supervisor, "MOST_FAILED_LOADS", 2)
    times = 3
    async with supervised(spares=True) as client:
        waits = [client.submit(submit(f"r{i}", max_tokens=5)) for i in range(3)]
        for lost in range(times):
            signalled(client)
            await restarted(client, lost + 1)
        for stream in waits:
            assert ends_of(await collect(stream))[0] in ("length", "error")
        assert ends_of(await collect(client.submit(submit("later")))) == ["length"]
        assert client.restarts == {"killed": times}


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (DEADLY, "crashed"),
        (FAULTY, "failed"),
        pytest.param(ENDLESS, "hung", marks=pytest.mark.slow),
    ],
)
async def test_a_request_that_breaks_each_engine_ends_alone(
    token: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Requests that wait behind it are answered, and so are later ones."""
    async with supervised(config=CONFIG.model_copy(update={"max_num_seqs": 1})) as client:
        bad = client.submit(submit("bad", prompt=[token], max_tokens=5))
        behind = [client.submit(submit(f"r{i}", priority=1)) for i in range(12)]
        (end,) = await collect(bad)
        assert (end.finish_reason, end.error_kind) == ("error", "unavailable")
        outcomes = [ends_of(await collect(stream)) for stream in behind]
        assert {outcome[0] for outcome in outcomes if len(outcome) == 1} <= {"length", "error"}
        assert outcomes[-1] == ["length"], "it had only waited"
        assert ends_of(await collect(client.submit(submit("later")))) == ["length"]
        assert client.restarts == {reason: 2}


async def test_who_runs_beside_a_request_that_breaks_each_engine_goes_on() -> None:
    async with supervised() as client:
        good = [client.submit(submit(f"r{i}", max_tokens=200)) for i in range(3)]
        news = [[await anext(stream)] for stream in good]
        (end,) = await collect(client.submit(submit("bad", prompt=[DEADLY])))
        assert (end.finish_reason, end.error_kind) == ("error", "unavailable")
        for outputs, stream in zip(news, good, strict=True):
            outputs.extend(await collect(stream))
        assert [ends_of(outputs) for outputs in news] == [["length"]] * 3
        assert [len(tokens_of(outputs)) for outputs in news] == [200] * 3
        assert client.restarts == {"crashed": 2}


async def test_a_request_that_comes_while_there_is_no_engine_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next engine loads only when the request has come."""
    start = EngineChild.start
    async with supervised() as client:
        may_load = asyncio.Event()

        async def started(child: EngineChild, *more: Any, **adapters: Any) -> Ready:
            await may_load.wait()
            return await start(child, *more, **adapters)

        monkeypatch.setattr(EngineChild, "start", started)
        signalled(client)
        while client.alive:
            await asyncio.sleep(0.001)
        assert client.restarting
        answer, unwanted = client.submit(submit("a")), client.submit(submit("b"))
        await unwanted.aclose()
        client.abort(["c"])
        may_load.set()
        assert ends_of(await collect(answer)) == ["length"]
        assert not client._streams.ids


async def test_what_nobody_awaits_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine stands still in the twelfth step, unnoticed, when the request is aborted."""
    monkeypatch.setattr(child_module, "SERVING", PATIENT)
    async with supervised(config=struck(signal.SIGSTOP, 12)) as client:
        stream = client.submit(submit("a", max_tokens=250))
        await anext(stream)
        while psutil.Process(client.engine_pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.005)
        await stream.aclose()
        signalled(client)
        await restarted(client)
        assert not client._streams.ids
        await collect(client.submit(submit("b")))
        assert client.stats[0].generation_tokens < 250


async def test_engines_that_do_not_load_any_more_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "MOST_FAILED_LOADS", 3)
    async with supervised("assemble_once", CONFIG.model_copy(update={"cache_dir": tmp_path})) as client:
        failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        client.on_failure = failure.set_result
        stream = client.submit(submit("a", max_tokens=250))
        await anext(stream)
        signalled(client)
        assert ends_of(await collect(stream)) == ["error"]
        error = await failure
        assert isinstance(error, EngineError)
        assert "3 engines in a row did not load" in str(error)
        assert not client.alive
        assert not client.restarting
        (end,) = await collect(client.submit(submit("b")))
        assert end.error_kind == "unavailable"
        assert client.restarts == {"killed": 1, "load": 3}


async def test_a_load_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loads_within(monkeypatch, 0.6)
    monkeypatch.setattr(supervisor, "MOST_FAILED_LOADS", 2)
    async with supervised() as client:
        failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        client.on_failure = failure.set_result
        await next_is(client, "assemble_forever")
        signalled(client)
        assert "it hung" in str(await failure)
        assert client.restarts == {"killed": 1, "load": 2}


async def test_a_load_that_tells_of_progress_takes_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes longer than a silent load may, in processor time, so that other processes do not matter."""
    loads_within(monkeypatch, LOAD_CPU_SECONDS / 2)
    async with supervised(spares=True) as client:
        await spare_is(client, "assemble_busily")
        signalled(client)
        await restarted(client)
        assert client.restarts == {"killed": 1}


@pytest.mark.parametrize("talks", [True, False])
def test_an_engine_that_reports_does_not_hang_however_still_its_heartbeat(
    talks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events come every other tick, for longer than a silent engine may take."""
    monkeypatch.setattr(
        child_module, "look_at", lambda _: ThreadStates(running=False, waiting=False, seconds={})
    )
    limits = HangLimits(still=1.0, busy=20.0)

    async def main() -> bool:
        loop, event = asyncio.get_running_loop(), encode_frame(LoadProgress("loading", 0.5))
        one, end = EngineChild((), 0, print), loop.time() + 2 * limits.still
        with socket.socket() as unused:
            one._connection = child_module._ChildConnection(loop, unused, 0, print, lambda _: None)
            one._engine = SimpleNamespace(pid=0, heartbeat=SimpleNamespace(read=lambda: 7))  # type: ignore[assignment]

            async def over(seconds: float) -> bool:
                await asyncio.sleep(2 * seconds)
                if talks:
                    one._connection.data_received(event)  # type: ignore[union-attr]
                return loop.time() > end

            return await one._hangs_before(over, limits)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(asyncio.Protocol)) as runner:
        assert runner.run(main()) is not talks


async def test_loads_that_somebody_kills_do_not_end_it(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each but the first, whose spare is gone, has a spare with its imports done or under way."""
    monkeypatch.setattr(supervisor, "MOST_FAILED_LOADS", 2)
    spares: list[bool] = []
    start = EngineChild.start

    async def started(child: EngineChild, *more: Any, **adapters: Any) -> Ready:
        spares.append(child.waits)
        return await start(child, *more, **adapters)

    monkeypatch.setattr(EngineChild, "start", started)
    async with supervised(spares=True) as client:
        await next_is(client, "assemble_forever")
        last = client.engine_pid
        signalled(client)
        for times in range(4):
            while client.engine_pid in (last, None):
                await asyncio.sleep(0.005)
            last = client.engine_pid
            if times == 3:
                client._engines.command = child("assemble_fragile")
            signalled(client)
        await restarted(client)
        assert ends_of(await collect(client.submit(submit("a")))) == ["length"]
        assert client.restarts == {"killed": 1, "load": 4}
        assert spares == [False, False, True, True, True, True], "the first engine of all had none either"


async def test_a_spare_engine_is_at_hand_and_one_that_is_gone_is_not_missed() -> None:
    async with supervised(spares=True) as client:
        for spare_is_gone in (False, True):
            assert client._engines.spare is not None
            spare = client._engines.spare.pid
            assert spare is not None
            if spare_is_gone:
                await client._engines.spare.kill()
            else:
                os.kill(spare, signal.SIGSTOP)
            signalled(client)
            await restarted(client, 1 + spare_is_gone)
            assert (client.engine_pid == spare) is not spare_is_gone
            assert ends_of(await collect(client.submit(submit("a")))) == ["length"]


async def test_closing_it_while_an_engine_loads_leaves_nothing() -> None:
    async with supervised() as client:
        await next_is(client, "assemble_forever")
        first = client.engine_pid
        signalled(client)
        while client.engine_pid in (first, None):
            await asyncio.sleep(0.005)
        loading = client.engine_pid or 0
    with pytest.raises(ProcessLookupError):
        os.kill(loading, 0)


async def test_signals_to_all_of_a_group_do_not_end_an_engine_before_its_first_import() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    one = EngineChild(child("assemble_fragile"), 0, print)
    one.spawn()
    assert one.pid is not None
    for number in SHARED:
        os.kill(one.pid, number)
    await one.start(CONFIG, print)
    await one.close()
    assert one.returncode == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


async def test_a_full_queue_is_told_at_once() -> None:
    """The client refuses, not the engine, which is stopped."""
    async with supervised(config=CONFIG.model_copy(update={"max_queued_requests": 3})) as client:
        signalled(client, signal.SIGSTOP)
        waiting = [client.submit(submit(f"r{i}", max_tokens=2)) for i in range(3)]
        (output,) = await collect(client.submit(submit("more")))
        assert client.alive, "it has not been replaced meanwhile"
        assert (output.finish_reason, output.error_kind) == ("error", "overloaded")
        assert output.retry_seconds is not None
        assert 1 <= output.retry_seconds <= 30
        for stream in waiting:
            assert ends_of(await collect(stream)) == ["length"]
        assert ends_of(await collect(client.submit(submit("more")))) == ["length"]


async def test_who_has_waited_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine stands still in the middle of another answer until the request has waited too long."""
    monkeypatch.setattr(child_module, "SERVING", PATIENT)
    config = struck(signal.SIGSTOP, 12).model_copy(update={"max_num_seqs": 1})
    async with supervised(config=config, queue_seconds=0.05) as client:
        running = client.submit(submit("a", max_tokens=250))
        await anext(running)
        while psutil.Process(client.engine_pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.005)
        late = client.submit(submit("b"))
        (output,) = await collect(late)
        assert (output.finish_reason, output.error_kind) == ("error", "expired")
        signalled(client, signal.SIGCONT)
        assert ends_of(await collect(running)) == ["length"]


FORGER = """
import socket, sys
from corepipe.engine.channel import encode_frame
from corepipe.engine.messages import Output, Outputs, Ready
with socket.socket(fileno=int(sys.argv[1])) as connection:
    connection.recv(1 << 16)
    connection.sendall(encode_frame(Ready({}, 1, 16, 64, "none", 0.0)))
    for epoch in (6, 8, 7):
        connection.sendall(encode_frame(Outputs([Output("a", [1])], epoch=epoch)))
    connection.recv(1)
"""


async def test_news_of_another_engine_are_not_heard() -> None:
    told: list[Outputs] = []
    one = EngineChild((sys.executable, "-c", FORGER), 7, told.append)
    await one.start(CONFIG, print)
    while not told:
        await asyncio.sleep(0.005)
    await one.close()
    assert [news.epoch for news in told] == [7]


LAST_WORDS = """
import socket, sys
from corepipe.engine.channel import encode_frame
from corepipe.engine.messages import Failed, Outputs, Ready, Started
with socket.socket(fileno=int(sys.argv[1])) as connection:
    connection.recv(1 << 16)
    connection.sendall(encode_frame(Ready({}, 1, 16, 64, "none", 0.0)))
    connection.recv(1 << 16)
    connection.sendall(encode_frame(Outputs(started=[Started("a", 5)])))
    connection.sendall(encode_frame(Failed("on fire", user_error=False)))
"""


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_last_words_are_heard_although_nothing_more_can_be_said(runner: Callable[..., None]) -> None:
    """A write to an engine that has ended comes before its last messages are read."""

    async def main() -> None:
        told: list[Outputs] = []
        one = EngineChild((sys.executable, "-c", LAST_WORDS), 0, told.append)
        await one.start(CONFIG, print)
        one.send(submit("a"))
        os.waitid(os.P_PID, one.pid or 0, os.WEXITED | os.WNOWAIT)  # the event loop stands still meanwhile
        one.send(submit("b"))
        end = await one.ended()
        assert (end.reason, end.words) == ("failed", "failed: on fire")
        assert [started.id for news in told for started in news.started] == ["a"]

    runner(asyncio.wait_for(main(), LIMIT_SECONDS))


async def test_what_generates_nothing_is_computed_again(tmp_path: Path) -> None:
    """The engine is killed in its third step: the next one computes the results that it had not sent."""
    texts = [[n + 1, 2 * n + 1, 7] for n in range(24)]
    config = CONFIG.model_copy(update={"cache_dir": tmp_path})
    async with supervised("assemble_fragile_encoder", config) as client:
        streams = [client.submit(submit(f"r{n}", text, 0, second=1)) for n, text in enumerate(texts)]
        for text, stream in zip(texts, streams, strict=True):
            (output,) = [output async for output in stream]
            assert output.finish_reason == "stop"
            assert floats(output) == [[sum(text), 2, 3]]
        assert client.restarts["killed"] == 1
