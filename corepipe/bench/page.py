"""A load test as one HTML page: figures over time, or (for a sweep) latency against load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from corepipe.bench.report import LoadReport
from corepipe.bench.summary import COLUMNS, cells, facts, latencies
from corepipe.bench.sweep import Sweep
from corepipe.workload import charts
from corepipe.workload.charts import Curve, Floats, Panel, middle, spread
from corepipe.workload.slo import NO_SLO

POINTS = 200
"""Intervals of time in which values are aggregated."""

LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End to end"}


def run_page(report: LoadReport) -> str:
    """Returns the page of one run, with figures over time."""
    document = report.document()
    rows = [(label, *values) for label, _, values in latencies(document)]
    known = charts.table([("", ""), *facts(report, document)])
    shown = known + charts.table([("milliseconds", *COLUMNS), *rows])
    return charts.page(_title(report), _about(report, document), _over_time(report), shown)


def sweep_page(sweep: Sweep, old: Mapping[str, Any] | None = None) -> str:
    """Returns the page with figures of each stage against its rate, beside those of an older sweep."""
    report, saturation = sweep.sustained.report, sweep.saturation
    found = f"Saturated at {saturation:.3g} requests/s." if saturation else "No stage saturated the server."
    stages = sweep.document()["stages"]
    names = [name for name in LATENCIES if report.generates or name == "e2el"]
    tokens = "output_throughput" if report.generates else "total_token_throughput"
    parts = (f"{name} {part} (ms)" for name in names for part in ("p50", "p99"))
    heads = ("requests/s", "got done", "met objectives", *parts, "tokens/s", "completed", "failed")
    shown = charts.table([heads, *(_stage(stage, names, tokens) for stage in stages)])
    then = old.get("stages") if old else None
    about = f"{_about(report, stages[0], skip=('rate', 'duration_seconds'))} {found}"
    return charts.page(_title(report), about, _against_load(stages, then or []), shown)


def _is_there(document: Mapping[str, Any], name: str) -> bool:
    return document[f"max_{name}_ms"] is not None


def _stage(stage: Mapping[str, Any], names: Sequence[str], tokens: str) -> tuple[str, ...]:
    times = [cell for name in names for cell in cells(stage, name, ("p50", "p99"))]
    done = f"{stage['steady_request_throughput']:.3g}{', saturated' if stage['saturated'] else ''}"
    good = stage["steady_request_goodput"]
    met = "" if good is None else f"{good:.3g}, {stage['slo_share']:.1%} of all"
    ends = (f"{stage[end]:,}" for end in ("completed", "failed"))
    return f"{_rate(stage):.3g}", done, met, *times, f"{stage[tokens]:,.0f}", *ends


def _title(report: LoadReport) -> str:
    return f"{report.conditions.model} at {report.conditions.url}"


def _about(report: LoadReport, document: Mapping[str, Any], skip: Sequence[str] = ()) -> str:
    settings = report.conditions.workload.items()
    facts = [
        f"{name.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in settings
        if value not in {None, ""} and name not in skip
    ]
    asked = f"{', '.join(facts)}; {report.conditions.api}"
    slo = f" Objectives: {report.conditions.slo}." if report.conditions.slo != NO_SLO else ""
    date = datetime.strptime(document["date"], "%Y%m%d-%H%M%S").isoformat(" ")
    return (
        f"Measured by the client on {date}, from the time a request was due. Workload: {asked}.{slo} "
        f"corepipe {document['corepipe']}."
    )


def _over_time(report: LoadReport) -> Iterator[Panel]:
    start, outcomes = report.span.start, report.recorder.outcomes
    done = [outcome for outcome in outcomes if outcome.end == "completed"]
    edges = np.linspace(0.0, max(report.span.seconds, 1e-9), POINTS + 1)
    x, end = middle(edges), float(edges[-1])
    begun, ended = (np.sort([getattr(o, name) - start for o in outcomes]) for name in ("intended", "ended"))
    under_way = np.searchsorted(begun, x) - np.searchsorted(ended, x)
    yield Panel("Requests due and not answered", "", (Curve("requests", x, under_way.astype(float)),), end)
    stamps = np.array([stamp - start for o in done for stamp in o.stamps])
    shares = np.array([o.output_tokens / len(o.stamps) for o in done for _ in o.stamps])
    tokens = np.histogram(stamps, edges, weights=shares)[0] / np.diff(edges)
    if report.generates:
        yield Panel("Output", "tokens/s", (Curve("output", x, tokens),), end)
    values: dict[str, Floats] = {
        "ttft": np.array([o.ttft if o.generated else np.nan for o in done]),
        "tpot": np.array([np.nan if o.tpot is None else o.tpot for o in done]),
        "e2el": np.array([o.e2e for o in done]),
    }
    due = np.array([o.intended - start for o in done])
    for name, title in LATENCIES.items():
        known = ~np.isnan(values[name])
        if known.any():
            curves = spread(due[known], values[name][known] * 1e3, edges)
            yield Panel(f"{title}, by when it was due", "ms", curves, end)


def _against_load(stages: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    end = max([_rate(stage) for stage in (*stages, *old)])
    for name, title in LATENCIES.items():
        if not any(_is_there(stage, name) for stage in stages):
            continue
        curves = [_curve(stages, part, f"{part}_{name}_ms") for part in ("p50", "p99")]
        curves += [_curve(old, "p99 then", f"p99_{name}_ms")] if old else []
        yield Panel(title, "ms", tuple(curves), end, "requests/s")
    done = [_curve(stages, "got done", "steady_request_throughput")]
    if stages[0]["request_goodput"] is not None:
        done.append(_curve(stages, "met objectives", "steady_request_goodput"))
    done += [_curve(old, "got done then", "steady_request_throughput")] if old else []
    yield Panel("Throughput", "requests/s", tuple(done), end, "requests/s")
    if any(stage["output_throughput"] for stage in stages):
        yield Panel("Output", "tokens/s", (_curve(stages, "output", "output_throughput"),), end, "requests/s")


def _curve(stages: Sequence[Mapping[str, Any]], name: str, key: str) -> Curve:
    x = np.array([_rate(stage) for stage in stages])
    values = (stage.get(key) for stage in stages)
    return Curve(name, x, np.array([np.nan if value is None else value for value in values]), dots=True)


def _rate(stage: Mapping[str, Any]) -> float:
    return float(stage["request_rate"])
