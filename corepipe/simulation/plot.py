"""A simulation over time as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from corepipe.simulation.columns import Floats
from corepipe.simulation.report import Latencies, SimulationReport
from corepipe.workload import charts
from corepipe.workload.charts import Curve, Panel, middle, spread

POINTS = 400
"""Intervals of time in which values are summed up."""


def page(report: SimulationReport) -> str:
    """The whole page."""
    deployment = report.deployment
    edges = np.linspace(0.0, max(_end(report), 1e-9), POINTS + 1)
    named = ("pipeline", "tensor", "data", "expert", "format")
    facts = ", ".join(f"{name} {deployment[name]}" for name in named if name in deployment)
    title = f"{deployment['model']} on {deployment['instance']}"
    return charts.page(
        title, f"{facts}. Emulated: predicted times, not measured ones.", _panels(report, edges)
    )


def _end(report: SimulationReport) -> float:
    return max(float(report.requests["last_at"].max(initial=0.0)), 0.0)


def _panels(report: SimulationReport, edges: Floats) -> Iterator[Panel]:
    requests, latencies = report.requests, Latencies.of(report.requests)
    steps, x, end = report.record.steps, middle(edges), float(edges[-1])
    running = sum(_held(s["starts_at"], s["running"], x) for s in steps)
    waiting = sum(_held(s["starts_at"], s["waiting"], x) for s in steps)
    counts = Curve("running", x, np.asarray(running)), Curve("waiting", x, np.asarray(waiting))
    yield Panel("Requests", "", counts, end)
    used = sum(_held(s["starts_at"], s["blocks_held"], x) for s in steps)
    blocks = report.record.limits.num_blocks * len(steps)
    yield Panel("KV cache", "%", (Curve("held", x, np.asarray(used) / blocks * 100),), end)
    tokens = sum(np.histogram(s["ready_at"], edges, weights=s["logit_rows"])[0] for s in steps)
    yield Panel("Output", "tokens/s", (Curve("output", x, np.asarray(tokens) / np.diff(edges)),), end)
    first, last = requests["first_at"], requests["last_at"]
    yield Panel("Time to first token", "ms", spread(first, latencies.ttft * 1e3, edges), end)
    yield Panel("Time per output token", "ms", spread(last, latencies.tpot * 1e3, edges), end)


def _held(times: Floats, values: Floats, x: Floats) -> Floats:
    """A value that holds until the next one; 0 before the first."""
    return np.concatenate([[0.0], values])[np.searchsorted(times, x, side="right")]
