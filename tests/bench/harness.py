"""Load tests against a stub in virtual time: their results do not depend on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar
from unittest import mock

from corepipe.bench import client, runner, setup, transport
from corepipe.bench.client import Api, RequestSettings
from corepipe.bench.play import LoadTest, LoadTestSettings
from corepipe.bench.report import LoadReport
from corepipe.bench.setup import PromptShape, set_up
from corepipe.bench.sweep import Sweep, sweep
from corepipe.bench.target import Http, Target, find
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.slo import NO_SLO, Slo
from corepipe.workload.workload import PrefixTree, Synthetic, Workload
from tests.bench import stub as stubs
from tests.bench.stub import Behaviour, Connection, Stub
from tests.bench.virtual_time import VirtualTimeLoop

URL = "http://stub"
AFTER_SECONDS = 60.0
"""Seconds for the server to notice the end of a run."""

T = TypeVar("T")


def synthetic(prompt: int = 20, output: int = 10, **more: Any) -> Synthetic:
    """Returns a small workload; with `rate`, an open loop."""
    rate = more.pop("rate", None)
    arrivals = None if rate is None else Arrivals(rate)
    users = more.pop("users", None if arrivals else 4)
    return Synthetic(
        Lengths(str(prompt)), Lengths(str(output)), more.pop("requests", None), more.pop("duration", None),
        arrivals, users, **more,
    )  # fmt: skip


def run(
    behaviour: Behaviour,
    body: Callable[[LoadTest], Awaitable[T]],
    slo: Slo = NO_SLO,
    shape: PromptShape | None = None,
    **asking: Any,
) -> T:
    """Prepares a run, calls `body`, and closes everything after it."""

    async def main() -> T:
        made.append(Stub(behaviour))
        http = Http(Target.parse(URL), None)
        found = await find(http, None)
        asked = replace(RequestSettings(found.model), **asking)
        ready = await set_up(http, found, asked, "salt", None, shape or PromptShape())
        settings = LoadTestSettings(asked, slo, "salt", keep_stamps=True)
        result = await body(LoadTest(http, found, ready, settings, lambda *_: None))
        http.pool.close()
        await asyncio.sleep(AFTER_SECONDS)
        made[0].close()
        return result

    made: list[Stub] = []
    loop = VirtualTimeLoop(lambda: Connection(made[0]))
    with ExitStack() as stack:
        for module in (client, runner, setup, stubs, transport):
            stack.enter_context(mock.patch.object(module, "perf_counter", loop.time))
        return stack.enter_context(asyncio.Runner(loop_factory=lambda: loop)).run(main())


def play(
    behaviour: Behaviour, workload: Synthetic | Workload, slo: Slo = NO_SLO, **asking: Any
) -> LoadReport:
    """Plays one workload."""
    shared = isinstance(workload, Synthetic) and workload.prefixes != PrefixTree()
    if isinstance(workload, Synthetic):
        workload = workload.workload()
    shape = PromptShape(workload.talks, shared)
    return run(behaviour, lambda test: test.play(workload), slo, shape, keep_text=shape.turns, **asking)


def play_sweep(
    behaviour: Behaviour,
    workload: Synthetic,
    seconds: float,
    slo: Slo = NO_SLO,
    api: Api = "completions",
    **more: Any,
) -> Sweep:
    """Plays a sweep to its end."""

    async def whole(test: LoadTest) -> Sweep | None:
        return await sweep(workload, seconds, lambda load, name: test.play(load.workload(), name), **more)

    found = run(behaviour, whole, slo, api=api)
    assert found is not None
    return found


def stopped_after(behaviour: Behaviour, workload: Synthetic, seconds: float) -> LoadReport:
    """Plays a run that is stopped early."""

    async def cut(test: LoadTest) -> LoadReport:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, test.stop)
        else:
            test.stop()
        return await test.play(workload.workload())

    return run(behaviour, cut)
