"""The output of `corepipe bench`: a line that moves while it measures, tables when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from corepipe.bench import summary
from corepipe.bench.compare import compared, differences
from corepipe.bench.recorder import METRICS, Recorder
from corepipe.bench.report import Conditions, LoadReport
from corepipe.bench.runner import LoadRun
from corepipe.bench.summary import COLUMNS, cells, latencies
from corepipe.bench.sweep import Stage, Sweep
from corepipe.cli.output.common import results
from corepipe.cli.output.plain import broken
from corepipe.cli.output.tables import Figures, facts
from corepipe.workload.workload import Workload

REFRESH_SECONDS, LOG_SECONDS = 0.25, 10.0
"""Between two pictures in a terminal, and between two lines in a log."""

SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
SHOWN_RATIOS = (
    "request_throughput", "output_throughput", "request_goodput", "saturation_request_rate",
    *(f"{part}_{name}_ms" for name in METRICS for part in ("p50", "p99")),
)  # fmt: skip


class BenchProgress:
    """The progress of the run that is under way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line: Callable[[], str] = str

    def watch(self, run: LoadRun, recorder: Recorder, workload: Workload, name: str) -> None:
        """Shows this run from now on."""
        self._line = lambda: _progress(run, recorder, workload, name)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Shows it, as a line that moves in a terminal and as a line now and then in a log."""
        task = asyncio.ensure_future(self._moving() if self._console.is_interactive else self._logged())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _moving(self) -> None:
        with Live(console=self._console, transient=True, auto_refresh=False) as screen:
            while True:
                screen.update(Text(broken(self._line(), self._console.width)), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)

    async def _logged(self) -> None:
        while True:
            await asyncio.sleep(LOG_SECONDS)
            self._console.print(self._line())


def _progress(run: LoadRun, recorder: Recorder, workload: Workload, name: str) -> str:
    seconds = perf_counter() - run.started if run.started else 0.0
    of = f" of {workload.requests}" if workload.requests else ""
    until = f" of {workload.duration:.0f}" if workload.duration else ""
    failed = f", {recorder.ends['failed']} failed" if recorder.ends["failed"] else ""
    rate = [f"{run.tokens / seconds:,.0f} tokens/s"] if run.tokens and seconds > 0 else []
    streams = recorder.latencies["ttft"].count
    times = (
        f"{label} p50 {values.at(50) * 1e3:,.{digits}f} p99 {values.at(99) * 1e3:,.{digits}f} ms"
        for label, values, digits in (
            ("TTFT", recorder.latencies["ttft"], 0),
            ("TPOT", recorder.latencies["tpot"], 1),
            *(() if streams else (("end to end", recorder.latencies["e2el"], 0),)),
        )
        if values.count
    )
    return f"{name}: {seconds:.0f}{until} s, {recorder.ends['completed']}{of} answered{failed}, " + ", ".join(
        (f"{run.in_flight} under way", *rate, *times)
    )


def print_report(report: LoadReport) -> None:
    """Prints the tables of one run."""
    console = results()
    conditions, document = report.conditions, report.document()
    console.print(_asked(conditions))
    table = Figures("milliseconds", *(f">{column}" for column in COLUMNS))
    for label, emulated, values in latencies(document):
        table.add_row(label, *values, style="dim" if emulated else "")
    console.print(table)
    console.print(facts(summary.facts(report, document)))


def _asked(conditions: Conditions) -> str:
    return f"{conditions.model} at {conditions.url}, {conditions.api}; prompts: {conditions.prompts}"


def print_sweep(sweep: Sweep) -> None:
    """Prints a line for each stage, and where the server saturates."""
    console = results()
    console.print(_asked(sweep.sustained.report.conditions))
    names = ("ttft", "tpot") if sweep.sustained.report.generates else ("e2el",)
    heads = [head for name in names for head in (f">{SHORT[name]} p50", ">p99")]
    table = Figures(">rate", ">done", *heads, ">tokens/s", ">good", ">failed")
    for stage in sweep.stages:
        table.add_row(*_row(stage, names), style="dim" if stage.saturated else "")
    console.print(table)
    shown = ", ".join(SHORT[name] for name in names)
    console.print(
        f" rate, done: requests/s that were due, and were answered; {shown}: in ms; dim rows: saturated"
    )
    console.print(_found(sweep))


def _row(stage: Stage, names: Iterable[str]) -> Iterator[str]:
    document = stage.report.document()
    yield f"{stage.rate:.3g}"
    yield f"{stage.done:.3g}"
    for name in names:
        yield from cells(document, name, ("p50", "p99"))
    yield f"{document['output_throughput' if stage.report.generates else 'total_token_throughput']:,.0f}"
    yield "" if document["slo_share"] is None else f"{document['slo_share']:.1%}"
    yield str(document["failed"])


def _found(sweep: Sweep) -> str:
    if sweep.saturation is None:
        return "The server kept up with every rate."
    followed = f"{sweep.sustained.rate:.3g} requests/s"
    return f"The server is saturated at {sweep.saturation:.3g} requests/s; it kept up with {followed}."


def print_compared(document: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    """Prints the ratios that matter, and which settings differ."""
    console = results()
    pairs = compared(document, old)
    table = Figures("", ">then", ">now", ">now / then")
    for name in SHOWN_RATIOS:
        if name in pairs:
            pair = pairs[name]
            table.add_row(name, f"{pair['old']:,.2f}", f"{pair['new']:,.2f}", f"{pair['ratio']:.3f}")
    console.print(table)
    for line in differences(document, old):
        console.print(f"different settings: {line}")
