"""A load test as one HTML page: over time, or (of a sweep) latency against load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from corepipe.planning import charts
from corepipe.planning.bench.report import Report
from corepipe.planning.bench.sweep import Sweep
from corepipe.planning.charts import Curve, Floats, Panel, middle, spread

POINTS = 200
"""Intervals of time in which values are summed up."""

LATENCIES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2el": "End to end"}
SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")


def run_page(report: Report) -> str:
    """One run, over time."""
    document = report.document()
    rows = [(name, *_cells(document, name)) for name in (*LATENCIES, "itl")]
    if "device" in document:
        what = "emulated" if document["device"]["valid"] else "emulated, not valid: the host was too slow"
        rows += [(f"{name}, {what}", *_cells(document["device"], name)) for name in ("ttft", "tpot")]
    shown = charts.table([("milliseconds", *SHOWN), *rows])
    return charts.page(_title(report), _about(report), _over_time(report), shown)


def sweep_page(sweep: Sweep, old: Mapping[str, Any] | None = None) -> str:
    """Latency, throughput and goodput of each stage against its rate, beside those of an older sweep."""
    report, saturation = sweep.sustained.report, sweep.saturation
    found = f"Saturated at {saturation:.3g} requests/s." if saturation else "No stage saturated the server."
    stages = sweep.document()["stages"]
    rows = [_stage(stage) for stage in stages]
    shown = charts.table([("requests/s", "got done", *_stage_heads(), "failed"), *rows])
    then = old.get("stages") if old else None
    about = f"{_about(report, skip=('rate', 'duration_seconds'))} {found}"
    return charts.page(_title(report), about, _against_load(stages, then or []), shown)


def _cells(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_shown(document[f"{part}_{name}_ms"]) for part in SHOWN)


def _shown(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:,.1f}"


def _stage_heads() -> tuple[str, ...]:
    return tuple(f"{name} {part} (ms)" for name in LATENCIES for part in ("p50", "p99"))


def _stage(stage: Mapping[str, Any]) -> tuple[str, ...]:
    times = [_shown(stage[f"{part}_{name}_ms"]) for name in LATENCIES for part in ("p50", "p99")]
    done = f"{stage['steady_request_throughput']:.3g}{', saturated' if stage['saturated'] else ''}"
    return f"{_rate(stage):.3g}", done, *times, str(stage["failed"])


def _title(report: Report) -> str:
    return f"{report.conditions.model} at {report.conditions.url}"


def _about(report: Report, skip: Sequence[str] = ()) -> str:
    settings = report.conditions.workload.items()
    facts = [
        f"{name.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
        for name, value in settings
        if value not in {None, ""} and name not in skip
    ]
    asked = f"{', '.join(facts)}; {report.conditions.api}"
    return f"Measured by the client, from the time a request was due. Workload: {asked}."


def _over_time(report: Report) -> Iterator[Panel]:
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
    yield Panel("Output", "tokens/s", (Curve("output", x, tokens),), end)
    values: dict[str, Floats] = {
        "ttft": np.array([o.ttft for o in done]),
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
        curves = [_curve(stages, part, f"{part}_{name}_ms") for part in ("p50", "p99")]
        curves += [_curve(old, "p99 then", f"p99_{name}_ms")] if old else []
        yield Panel(title, "ms", tuple(curves), end, "requests/s")
    done = [_curve(stages, "got done", "steady_request_throughput")]
    if stages[0]["request_goodput"] is not None:
        done.append(_curve(stages, "met objectives", "request_goodput"))
    done += [_curve(old, "got done then", "steady_request_throughput")] if old else []
    yield Panel("Throughput", "requests/s", tuple(done), end, "requests/s")
    yield Panel("Output", "tokens/s", (_curve(stages, "output", "output_throughput"),), end, "requests/s")


def _curve(stages: Sequence[Mapping[str, Any]], name: str, key: str) -> Curve:
    x = np.array([_rate(stage) for stage in stages])
    values = (stage.get(key) for stage in stages)
    return Curve(name, x, np.array([np.nan if value is None else value for value in values]), dots=True)


def _rate(stage: Mapping[str, Any]) -> float:
    return float(stage["request_rate"])
