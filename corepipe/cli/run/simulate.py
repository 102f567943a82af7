"""The work of `corepipe simulate`: from the flags to a workload, from a report to text, JSON and a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.text import Text

from corepipe.cli.flags.options import Given
from corepipe.cli.flags.settings import configured
from corepipe.cli.flags.workload import SIMULATED_REQUESTS, TraceSchema
from corepipe.cli.output.common import check_writable, errors, progress_bar, results, write_result
from corepipe.cli.output.placement import degrees_of
from corepipe.cli.output.tables import Figures, between, facts
from corepipe.cli.run.kernels import kernels_in_words
from corepipe.cli.run.software import ASSUMED, SIMULATE, GraphKind, software
from corepipe.cli.run.workload import asked_slo, asked_workload, input_length
from corepipe.engine.assembly.device_plan import graph_of, timed_task
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.models.registry import architecture
from corepipe.neuron.graph import Graph
from corepipe.neuron.step import StepShape
from corepipe.neuron.timing.uncertainty import Figure
from corepipe.simulation.assumed_drafts import SyntheticDrafts
from corepipe.simulation.plot import page
from corepipe.simulation.report import LATENCIES, SimulationReport
from corepipe.simulation.simulate import SimulationConfig, simulate
from corepipe.workload.slo import NO_SLO, Slo
from corepipe.workload.traces import write_trace
from corepipe.workload.workload import Workload, with_adapters

NOTHING_ANSWERED = 1
"""Exit code, as that of `corepipe bench`."""


def run(given: Given) -> None:
    """Simulates with these flags and prints the result.  Raises UserError for what cannot be simulated, Exit
    where no request was answered."""
    model = architecture(given["model"])
    given = _with_adapters(given)
    engine = configured(EngineConfig, given)
    graph = graph_of(engine, model, timed_task(engine.task, model))
    slo = asked_slo(given)
    if not graph.generates:
        given = _run_once(given, graph, slo)
    stack = given["profile"] or ASSUMED[SIMULATE][GraphKind.of(graph)]
    config = SimulationConfig(engine.model_copy(update={"profile": stack}), slo)
    workload = asked_workload(given, "users", SIMULATED_REQUESTS)
    if given["adapters"] is not None:
        workload = with_adapters(workload, given["adapters"], given["seed"])
    if given["write_trace"] is not None:
        _write_trace(given["write_trace"], workload, given["trace_format"])
        return
    output, plot = given["output"], given["plot"]
    _check_writable(output, plot)
    with progress_bar(errors()) as progress:
        report = simulate(config, workload, progress)
    if report.sent == 0:
        raise UserError(
            f"--duration {given['duration']:g}: no request arrives in that time; give a longer one",
            "duration",
        )
    _show(report, output, plot, as_json=given["json"], assumes=given["profile"] is None)
    if report.completed == 0:
        errors().print(f"corepipe: no request was answered: {_refusals(report)}")
        raise typer.Exit(NOTHING_ANSWERED)


def _with_adapters(given: Given) -> Given:
    """Returns the flags with what `--adapters` asks of the deployment.  Raises UserError for a rank alone."""
    if given["adapters"] is None:
        given.refuse(("adapter_rank",), "is of --adapters; add it")
        return given
    places = {"enable_lora": True, "max_loras": given["adapters"], "max_lora_rank": given["adapter_rank"]}
    return given.replaced(**places)


def _refusals(report: SimulationReport) -> str:
    reasons = {
        "overloaded": "were refused, as the queue was full (--max-num-queued-reqs, --max-num-queued-tokens)",
        "invalid": _too_long(report),
    }
    told = (f"{count} {reasons[kind]}" for kind, count in report.rejected.items() if count)
    return ", ".join(told) or f"{report.sent} were sent"


def _too_long(report: SimulationReport) -> str:
    if report.device.graph.generates:
        return "were refused, as they are too long (--max-model-len, --num-blocks)"
    most = report.device.graph.max_positions
    return f"were refused, as they are longer than the {most} tokens that the model takes"


def _run_once(given: Given, graph: Graph, slo: Slo) -> Given:
    """The flags for a model that is run once over its input: a request has one result, an image one length.

    Raises UserError for flags of what generates.
    """
    length = input_length(given, graph, ("output_len", "trace", "turns", "prefix_tree"))
    if slo.tpot is not None:
        raise UserError(
            f"--slo tpot is not for {graph.name}, which generates no tokens; give e2e instead", "slo"
        )
    return given.replaced(output_len="1", input_len=length)


def _write_trace(path: Path, workload: Workload, schema: TraceSchema | None) -> None:
    if schema is None:
        raise UserError("--write-trace needs --trace-format mooncake, azure or burstgpt", "trace_format")
    count = write_trace(path, workload, schema.value)
    errors().print(f"wrote {count} requests to {path}")


def _check_writable(output: Path | None, plot: Path | None) -> None:
    """Checks that the results can be written, before the work.  Raises UserError."""
    if plot is not None and plot.suffix not in {".html", ".htm"}:
        raise UserError(
            f"--plot {plot}: plots are HTML pages; name it {plot.with_suffix('.html').name}", "plot"
        )
    check_writable("--output", output)
    check_writable("--plot", plot)


def _show(
    report: SimulationReport, output: Path | None, plot: Path | None, *, as_json: bool, assumes: bool
) -> None:
    """assumes: whether the software around the model is the command's choice."""
    if output is not None:
        write_result("--output", output, report.to_json() + "\n")
    if plot is not None:
        write_result("--plot", plot, page(report))
    if as_json:
        typer.echo(report.to_json())
        return
    console, graph = results(), report.device.graph
    for line in _headline(report, software(report.device.profile, graph if assumes else None)):
        console.print(line)
    console.print(_latencies(report, LATENCIES if graph.generates else ONCE))
    device = (fact for fact in _device(report) if graph.generates or fact[0] != KEPT)
    console.print(facts((*(_rates if graph.generates else _results)(report), *device)))


def _headline(report: SimulationReport, around: str) -> Iterator[str | Text]:
    placed = report.deployment
    degrees = ", ".join(degrees_of(placed))
    yield (
        f"{placed['model']}, {placed['format']}, on {placed['instance']} (emulated, profile "
        f"{placed['runtime_profile']}): {degrees}"
    )
    if why := placed.get("hypothetical"):
        yield Text(f"hypothetical: {why}", "yellow")
    yield Text(str(placed["reason"]), "dim")
    device = report.device
    for line in kernels_in_words(device.profile, device.programs, device.instance):
        yield Text(line, "dim")
    if not report.device.graph.generates and report.completed:
        yield Text(_this_load(report), "dim")
    yield Text(around, "dim")
    answered = f"{report.completed} of {report.sent} requests{_sizes(report)} answered"
    yield f"{answered} in {report.seconds:.1f} s of virtual time"
    if report.overloaded:
        yield Text(_overload(report), "yellow")
    if report.rejected["overloaded"]:
        yield f"{report.rejected['overloaded']} were refused, as the queue was full (--max-num-queued-reqs)"
    if report.rejected["invalid"]:
        yield f"{report.rejected['invalid']} {_too_long(report)}"


def _sizes(report: SimulationReport) -> str:
    """Returns the lengths of the answered texts, for a model that runs once over them."""
    graph, prompts = report.device.graph, report.requests["prompt_tokens"]
    if graph.generates or GraphKind.of(graph) is GraphKind.IMAGES or not len(prompts):
        return ""
    least, most = int(prompts.min()), int(prompts.max())
    return f" of {least} tokens" if least == most else f" of {least} to {most} tokens"


def _this_load(report: SimulationReport) -> str:
    """Says how long a request of this load takes alone, and how many a second full batches answer."""
    limits, tokens = report.record.limits, round(float(report.requests["prompt_tokens"].mean()))
    seats = max(1, min(limits.max_num_seqs, limits.max_num_batched_tokens // tokens))
    cost = report.device.timeline(0).cost
    alone, full = (cost.latency(StepShape.of([(0, tokens)] * n, n)) for n in (1, seats))
    most = report.device.placement.data * seats / full
    return f"this load: {alone * 1e3:.2f} ms a request, {most:,.0f} requests/s at most, in batches of {seats}"


def _overload(report: SimulationReport) -> str:
    share = report.completed / report.sent / (1 + report.growth)
    return f"overloaded: requests end at {share:.0%} of the rate at which they arrive, and the queue grows"


LABELS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between tokens",
    "e2e": "end to end",
    "queue": "in the queue",
}


KEPT = "KV cache"
ONCE = ("e2e", "queue")
"""Latencies of what has but one result."""


def _latencies(report: SimulationReport, names: Sequence[str]) -> Figures:
    table = Figures("milliseconds", ">mean", ">p50", ">p90", ">p95", ">p99", ">max")
    for name in names:
        quantiles = getattr(report, name)
        if quantiles is not None:
            table.add_row(LABELS[name], *(f"{value:,.1f}" for value in quantiles.scaled(1e3).values()))
    return table


def _goodput(report: SimulationReport) -> Iterator[tuple[str, str]]:
    if report.slo != NO_SLO:
        share = report.good / report.sent if report.sent else 0.0
        good = report.throughput.good_requests
        yield "goodput", f"{good:,.2f} requests/s meet the objectives: {share:.1%}"


def _results(report: SimulationReport) -> Iterator[tuple[str, str]]:
    """Yields the figures of a model that gives one result a request."""
    yield "throughput", f"{report.throughput.requests:,.1f} requests/s"
    yield from _goodput(report)
    known = report.intervals
    bounds = known.latencies("e2e", report.e2e, 1e3)
    took = f"end to end p50 {between(bounds['p50'])}, p99 {between(bounds['p99'])} ms; " if bounds else ""
    rates = between(known.rate(report.throughput.requests))
    yield "interval", f"{took}{rates} requests/s ({known.of(known.figures[-1]).basis})"
    dollars = report.dollars_per_million_output_tokens
    if dollars is not None:
        yield "cost", f"{dollars:.2f} $ per million requests, at {report.price_per_hour:.2f} $/h"


def _rates(report: SimulationReport) -> Iterator[tuple[str, str]]:
    rates = report.throughput
    yield (
        "throughput",
        f"{rates.requests:.2f} requests/s, {rates.output_tokens:,.1f} output tokens/s, "
        f"{rates.total_tokens:,.1f} tokens/s",
    )
    yield "interval", _sure(report)
    yield from _goodput(report)
    dollars = report.dollars_per_million_output_tokens
    if dollars is not None:
        yield "cost", f"{dollars:.2f} $ per million output tokens, at {report.price_per_hour:.2f} $/h"
    elif report.price_per_hour is None:
        yield "cost", "no on-demand price is published; corepipe plan --prices FILE reads yours"


def _drafts(found: SyntheticDrafts) -> str:
    rates = ", ".join(f"{rate:.3g}" for rate in found.rates)
    told = (
        f"{found.tokens_a_step:.2f} tokens per request and step; assumed acceptance rates of drafts: {rates}"
    )
    if found.draft_model is None:
        return told
    return f"{told}; draft model {found.draft_model} takes {found.draft_share:.0%} of the busy time of cores"


def _sure(report: SimulationReport) -> str:
    """Returns the intervals of measurements."""
    known, parts = report.intervals, []
    for name in ("ttft", "tpot", "e2e"):
        bounds = known.latencies(name, getattr(report, name), 1e3)
        if bounds is not None:
            middle, tail = between(bounds["p50"]), between(bounds["p99"])
            parts.append(f"{LABELS[name]} p50 {middle}, p99 {tail} ms")
    parts.append(f"{between(known.rate(report.throughput.output_tokens))} output tokens/s")
    return f"{'; '.join(parts)} ({known.of(Figure.THROUGHPUT).basis})"


def _device(report: SimulationReport) -> Iterator[tuple[str, str]]:
    usage = report.usage
    yield "queue", f"{usage.waiting_mean:.1f} waiting on average, {usage.waiting_max} at most"
    yield (
        KEPT,
        f"{usage.kv_mean:.0%} in use on average, {usage.kv_peak:.0%} at most, of {usage.kv_blocks} blocks",
    )
    if usage.preemptions:
        yield "preemptions", f"{usage.preemptions}"
    if usage.prefix_queries:
        found = usage.prefix_hits / usage.prefix_queries
        yield "prefix cache", f"{found:.1%} of prompt tokens were in the cache"
    if report.drafts is not None:
        yield "speculation", _drafts(report.drafts)
    yield (
        "batches",
        f"{usage.batch_mean:.1f} sequences on average, {usage.padding:.1%} of the rows are padding",
    )
    stages = report.deployment["pipeline"]
    if stages != 1:
        handed = f"{usage.hand_over * 1e3:.3g} ms of a step are hand-overs between stages"
        yield (
            "pipeline",
            f"{usage.fill:.0%} of the time all stages are busy, {usage.occupancy:.0%} on average; {handed}",
        )
    engines = ", ".join(f"{name} {share:.0%}" for name, share in usage.engines.items() if share >= 0.005)
    yield "cores", f"{usage.busy:.0%} busy; of that {engines}"
    bound = ", ".join(f"{name} {share:.0%}" for name, share in usage.bound.items() if share >= 0.005)
    yield "bottleneck", f"{usage.bottleneck} ({bound})"
