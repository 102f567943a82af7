"""Load tests in the test's own process, against a stub in another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvloop

from corepipe.planning.arrivals import Arrivals
from corepipe.planning.bench.client import Asking
from corepipe.planning.bench.play import LoadTest, Settings
from corepipe.planning.bench.report import Report
from corepipe.planning.bench.setup import Shape, set_up
from corepipe.planning.bench.sweep import Sweep, sweep
from corepipe.planning.bench.target import Http, Target, find
from corepipe.planning.lengths import Lengths
from corepipe.planning.slo import NO_SLO, Slo
from corepipe.planning.workload import PrefixTree, Synthetic, Workload


def synthetic(prompt: int = 20, output: int = 10, **more: Any) -> Synthetic:
    """A small workload; with `rate`, an open loop."""
    rate = more.pop("rate", None)
    arrivals = None if rate is None else Arrivals(rate)
    users = more.pop("users", None if arrivals else 4)
    return Synthetic(
        Lengths(str(prompt)), Lengths(str(output)), more.pop("requests", None), more.pop("duration", None),
        arrivals, users, **more,
    )  # fmt: skip


@asynccontextmanager
async def prepared(
    url: str, slo: Slo = NO_SLO, shape: Shape | None = None, **asking: Any
) -> AsyncIterator[LoadTest]:
    """Everything that comes before a run, and after it."""
    http = Http(Target.parse(url), None)
    try:
        found = await find(http, None)
        asked = replace(Asking(found.model), **asking)
        setup = await set_up(http, found, asked, "salt", None, shape or Shape())
        settings = Settings(asked, slo, "salt", keep_stamps=True)
        yield LoadTest(http, found, setup, settings, lambda *_: None)
    finally:
        http.pool.close()


def play(url: str, workload: Synthetic | Workload, slo: Slo = NO_SLO, **asking: Any) -> Report:
    """Plays one workload."""

    async def main() -> Report:
        shape = Shape()
        if isinstance(workload, Synthetic):
            shape = Shape(workload.turns > 1, workload.prefixes != PrefixTree())
        async with prepared(url, slo, shape, keep_text=shape.turns, **asking) as test:
            return await test.play(workload.workload() if isinstance(workload, Synthetic) else workload)

    return uvloop.run(main())


def play_sweep(url: str, workload: Synthetic, seconds: float, **more: Any) -> Sweep:
    """A sweep to its end."""

    async def main() -> Sweep | None:
        async with prepared(url) as test:
            return await sweep(workload, seconds, lambda load, name: test.play(load.workload(), name), **more)

    found = uvloop.run(main())
    assert found is not None
    return found


def stopped_after(url: str, workload: Synthetic, seconds: float) -> Report:
    """A run that is ended early."""

    async def main() -> Report:
        async with prepared(url) as test:
            if seconds:
                asyncio.get_running_loop().call_later(seconds, test.stop)
            else:
                test.stop()
            return await test.play(workload.workload())

    return uvloop.run(main())
