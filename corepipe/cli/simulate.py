"""`corepipe simulate`: a workload through a deployment in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from corepipe.cli import options
from corepipe.cli.common import errors, progress_bar
from corepipe.cli.serve import config_fields, flag_of
from corepipe.errors import UserError
from corepipe.planning.arrivals import Arrivals
from corepipe.planning.lengths import FORMS, Lengths
from corepipe.planning.plot import page
from corepipe.planning.report import LATENCIES, NO_SLO, Report, Slo
from corepipe.planning.simulate import SimulationConfig
from corepipe.planning.simulate import simulate as run
from corepipe.planning.traces import trace_workload, write_trace
from corepipe.planning.workload import PrefixTree, Synthetic, Workload
from corepipe.serving.config import EngineConfig, validated

WORKLOAD, RESULT = "Workload", "Result"

DEFAULT_USERS = 8
"""Of a closed loop, where neither a rate, users nor a trace is given: no deployment is overrun."""

DEFAULT_REQUESTS = 500


class Arrival(StrEnum):
    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


class TraceSchema(StrEnum):
    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Model = Annotated[
    str, typer.Argument(help="A directory, a config.json, a .gguf file, or a name such as llama-3.1-8b.")
]
Lnc = Annotated[
    int | None,
    typer.Option(
        "--lnc", help="Physical cores in a logical one (trn2: 1 or 2).", rich_help_panel=options.DEVICE
    ),
]
Rate = Annotated[
    float | None,
    _option("--rate", help="Requests a second (open loop); inf: all at once.", panel=WORKLOAD),
]
ArrivalOption = Annotated[Arrival, _option("--arrival", help="Gaps between requests.", panel=WORKLOAD)]
Burstiness = Annotated[
    float,
    _option("--burstiness", help="Shape of gamma gaps: below 1 bursty, above 1 regular.", panel=WORKLOAD),
]
Users = Annotated[
    int | None,
    _option(
        "--users",
        help=f"Closed loop: each waits for its answer; {DEFAULT_USERS} if nothing is given.",
        panel=WORKLOAD,
        min=1,
    ),
]
Think = Annotated[
    float, _option("--think-time", help="Seconds from an answer to the next request.", panel=WORKLOAD, min=0)
]
Requests = Annotated[
    int | None,
    _option(
        "--requests",
        help=f"How many; default: {DEFAULT_REQUESTS}, or all of a trace or --duration.",
        panel=WORKLOAD,
        min=1,
    ),
]
Duration = Annotated[
    float | None, _option("--duration", help="Seconds in which requests come.", panel=WORKLOAD, min=0)
]
InputLen = Annotated[str, _option("--input-len", help=f"Prompt tokens: {FORMS}.", panel=WORKLOAD)]
OutputLen = Annotated[str, _option("--output-len", help=f"Answer tokens: {FORMS}.", panel=WORKLOAD)]
Prefixes = Annotated[
    str | None,
    _option(
        "--prefix-tree",
        help="Shared prefixes before the prompts, BRANCHESxTOKENS a level: 1x512,8x256.",
        panel=WORKLOAD,
    ),
]
Turns = Annotated[
    int, _option("--turns", help="Turns of a conversation; each adds --input-len.", panel=WORKLOAD, min=1)
]
Trace = Annotated[
    Path | None, _option("--trace", help="Play this file's requests, at its times.", panel=WORKLOAD)
]
Schema = Annotated[
    TraceSchema | None,
    _option("--trace-format", help="Of --trace and --write-trace; default: as it looks.", panel=WORKLOAD),
]
WriteTrace = Annotated[
    Path | None,
    _option("--write-trace", help="Write the workload as a trace, and simulate nothing.", panel=WORKLOAD),
]
Seed = Annotated[int, _option("--seed", help="Of the workload.", panel=WORKLOAD)]
SloOption = Annotated[
    str | None,
    _option("--slo", help="For goodput, in milliseconds: 'ttft:500 tpot:50 e2e:10000'.", panel=RESULT),
]
AsJson = Annotated[bool, _option("--json", help="Print the result as JSON.", panel=RESULT)]
Output = Annotated[
    Path | None, _option("--output", "-o", help="Write the result here as JSON.", panel=RESULT)
]
Plot = Annotated[
    Path | None, _option("--plot", help="Write curves over time here, as an HTML page.", panel=RESULT)
]


def simulate(
    ctx: typer.Context,
    model: Model,
    dtype: options.Format = options.Dtype.BF16,
    max_model_len: options.MaxModelLen = None,
    instance: options.Instance = "inf2.xlarge",
    lnc: Lnc = None,
    mode: options.ModeOption = options.Mode.AUTO,
    pipeline: options.Pipeline = None,
    tensor: options.Tensor = None,
    data: options.Data = None,
    profile: options.Profile = None,
    max_num_seqs: options.MaxNumSeqs = 32,
    max_num_batched_tokens: options.MaxBatchedTokens = 512,
    policy: options.Policy = None,
    block_size: options.BlockSize = 32,
    num_blocks: options.NumBlocks = None,
    enable_prefix_caching: options.PrefixCaching = True,
    max_num_queued_reqs: options.MaxQueuedReqs = 1024,
    max_num_queued_tokens: options.MaxQueuedTokens = 1_000_000,
    rate: Rate = None,
    arrival: ArrivalOption = Arrival.POISSON,
    burstiness: Burstiness = 1.0,
    users: Users = None,
    think_time: Think = 0.0,
    requests: Requests = None,
    duration: Duration = None,
    input_len: InputLen = "512",
    output_len: OutputLen = "128",
    prefix_tree: Prefixes = None,
    turns: Turns = 1,
    trace: Trace = None,
    trace_format: Schema = None,
    write_trace: WriteTrace = None,
    seed: Seed = 0,
    slo: SloOption = None,
    as_json: AsJson = False,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Predict what a workload would see of MODEL on an instance: latencies, throughput, cost.

    Runs the server's own scheduler in virtual time; reads no weights.
    """
    config = SimulationConfig(
        validated(EngineConfig, config_fields(EngineConfig, ctx.params), flag_of),
        Slo.parse(slo) if slo else NO_SLO,
    )
    workload = _workload(ctx.params)
    if write_trace is not None:
        _write_trace(write_trace, workload, trace_format)
        return
    _check_writable(output, plot)
    with progress_bar(errors()) as progress:
        report = run(config, workload, progress)
    _show(report, output, plot, as_json=as_json)


def _workload(given: dict[str, Any]) -> Workload:
    """What the flags describe.  Raises UserError for flags that contradict each other."""
    if given["trace"] is not None:
        return _traced(given)
    rate, users, requests = given["rate"], given["users"], given["requests"]
    if rate is not None and users is not None:
        raise UserError("--rate is an open loop and --users a closed one: give one of them", "rate")
    if rate is None and users is None:
        users = DEFAULT_USERS
    if requests is None and given["duration"] is None:
        requests = DEFAULT_REQUESTS
    return Synthetic(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        requests,
        given["duration"],
        None if rate is None else Arrivals(rate, given["arrival"].value, given["burstiness"]),
        users,
        given["turns"],
        given["think_time"],
        PrefixTree.parse(given["prefix_tree"]) if given["prefix_tree"] else PrefixTree(),
        given["seed"],
    ).workload()


def _traced(given: dict[str, Any]) -> Workload:
    excluded = {"rate": None, "users": None, "prefix_tree": None, "turns": 1, "think_time": 0.0}
    for name, absent in excluded.items():
        if given[name] != absent:
            flag = flag_of(name)
            raise UserError(
                f"{flag}: a trace has its own requests and times; leave out {flag} or --trace", name
            )
    schema = given["trace_format"]
    return trace_workload(given["trace"], schema and schema.value, given["requests"], given["duration"])


def _write_trace(path: Path, workload: Workload, schema: TraceSchema | None) -> None:
    if schema is None:
        raise UserError("--write-trace needs --trace-format mooncake, azure or burstgpt", "trace_format")
    count = write_trace(path, workload, schema.value)
    errors().print(f"{count} requests in {path}")


def _check_writable(output: Path | None, plot: Path | None) -> None:
    """Before the work, not after it."""
    if plot is not None and plot.suffix not in {".html", ".htm"}:
        raise UserError(
            f"--plot {plot}: plots are HTML pages; call it {plot.with_suffix('.html').name}", "plot"
        )
    for flag, path in (("--output", output), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise UserError(f"{flag} {path}: there is no directory {path.parent}", flag.lstrip("-"))


def _show(report: Report, output: Path | None, plot: Path | None, *, as_json: bool) -> None:
    if output is not None:
        output.write_text(report.to_json() + "\n", encoding="utf-8")
    if plot is not None:
        plot.write_text(page(report), encoding="utf-8")
    if as_json:
        typer.echo(report.to_json())
        return
    console = Console(highlight=False, soft_wrap=True)
    for line in _headline(report):
        console.print(line)
    console.print(_latencies(report))
    console.print(_facts(report))


def _headline(report: Report) -> Iterator[str]:
    placed = report.deployment
    degrees = ", ".join(f"{name} {placed[name]}" for name in ("pipeline", "tensor", "data"))
    yield (
        f"{placed['model']}, {placed['format']}, on {placed['instance']} (emulated, profile "
        f"{placed['runtime_profile']}): {degrees}"
    )
    yield f"[dim]{placed['reason']}[/dim]"
    yield f"{report.completed} of {report.sent} requests answered in {report.seconds:.1f} s of virtual time"
    if report.rejected["overloaded"]:
        yield f"{report.rejected['overloaded']} found the queue full (--max-num-queued-reqs)"
    if report.rejected["invalid"]:
        yield (
            f"{report.rejected['invalid']} were too long for --max-model-len {placed['max_model_len']} or "
            "the KV blocks"
        )


LABELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between tokens",
    "e2e": "end to end",
    "queue": "in the queue",
}


def _latencies(report: Report) -> Table:
    table = Table("milliseconds", box=None)
    for column in ("mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(column, justify="right")
    for name in LATENCIES:
        quantiles = getattr(report, name)
        if quantiles is not None:
            table.add_row(LABELS[name], *(f"{value:,.1f}" for value in quantiles.scaled(1e3).values()))
    return table


def _facts(report: Report) -> Table:
    table = Table("", "", box=None, show_header=False)
    for label, text in (*_rates(report), *_device(report)):
        table.add_row(label, text)
    return table


def _rates(report: Report) -> Iterator[tuple[str, str]]:
    rates = report.throughput
    yield (
        "throughput",
        f"{rates.requests:.2f} requests/s, {rates.output_tokens:,.1f} output tokens/s, "
        f"{rates.total_tokens:,.1f} tokens/s",
    )
    if report.slo != NO_SLO:
        share = report.good / report.sent if report.sent else 0.0
        yield "goodput", f"{rates.good_requests:.2f} requests/s meet the objectives: {share:.1%}"
    dollars = report.dollars_per_million_output_tokens
    if dollars is not None:
        yield "cost", f"{dollars:.2f} $ per million output tokens, at {report.price_per_hour:.2f} $/h"


def _device(report: Report) -> Iterator[tuple[str, str]]:
    usage = report.usage
    yield "queue", f"{usage.waiting_mean:.1f} waiting on average, {usage.waiting_max} at most"
    yield (
        "KV cache",
        f"{usage.kv_mean:.0%} held on average, {usage.kv_peak:.0%} at most, of {usage.kv_blocks} blocks",
    )
    if usage.preemptions:
        yield "preemptions", f"{usage.preemptions}"
    if usage.prefix_queries:
        found = usage.prefix_hits / usage.prefix_queries
        yield "prefix cache", f"{found:.1%} of prompt tokens found"
    yield (
        "batches",
        f"{usage.batch_mean:.1f} sequences on average, {usage.padding:.1%} of the rows are padding",
    )
    stages = report.deployment["pipeline"]
    if stages != 1:
        yield "pipeline", f"{usage.fill:.0%} of the time all stages busy, {usage.occupancy:.0%} on average"
    engines = ", ".join(f"{name} {share:.0%}" for name, share in usage.engines.items() if share >= 0.005)
    yield "cores", f"{usage.busy:.0%} busy; of that {engines}"
    bound = ", ".join(f"{name} {share:.0%}" for name, share in usage.bound.items() if share >= 0.005)
    yield "bottleneck", f"{usage.bottleneck} ({bound})"
