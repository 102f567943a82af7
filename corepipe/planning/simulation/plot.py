"""A simulation over time as one HTML page: curves in inline SVG, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from corepipe.planning.simulation.record import Floats
from corepipe.planning.simulation.report import Latencies, Report

WIDTH, HEIGHT, MARGIN = 860, 150, 60
POINTS = 400
"""Intervals of time in which values are summed up."""

COLOURS = ("#2563eb", "#dc2626", "#059669")

_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:960px;color:#1f2937}"
    "svg{display:block;margin:.3em 0 1.2em}text{font-size:11px;fill:#6b7280}h2{font-size:15px;margin:0}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """`values` at times; NaN where there is nothing to show."""

    name: str
    values: Floats


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over the same times, with a unit."""

    title: str
    unit: str
    curves: tuple[Curve, ...]


def page(report: Report) -> str:
    """The whole page."""
    deployment, title = report.deployment, _title(report)
    edges = np.linspace(0.0, max(_end(report), 1e-9), POINTS + 1)
    panels = "".join(_panel(panel, edges) for panel in _panels(report, edges))
    facts = ", ".join(f"{name} {deployment[name]}" for name in ("pipeline", "tensor", "data", "format"))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(facts)}. Emulated: predicted times, not measured ones.</p>"
        f"{panels}</html>\n"
    )


def _title(report: Report) -> str:
    return escape(f"{report.deployment['model']} on {report.deployment['instance']}")


def _end(report: Report) -> float:
    return max(float(report.requests["last_at"].max(initial=0.0)), 0.0)


def _panels(report: Report, edges: Floats) -> Iterator[Panel]:
    requests, latencies = report.requests, Latencies.of(report.requests)
    steps = report.record.steps
    running = sum(_held(s["starts_at"], s["running"], edges) for s in steps)
    waiting = sum(_held(s["starts_at"], s["waiting"], edges) for s in steps)
    yield Panel(
        "Requests", "", (Curve("running", np.asarray(running)), Curve("waiting", np.asarray(waiting)))
    )
    used = sum(_held(s["starts_at"], s["blocks_held"], edges) for s in steps)
    blocks = report.record.limits.num_blocks * len(steps)
    yield Panel("KV cache", "%", (Curve("held", np.asarray(used) / blocks * 100),))
    tokens = sum(np.histogram(s["ready_at"], edges, weights=s["logit_rows"])[0] for s in steps)
    yield Panel("Output", "tokens/s", (Curve("output", np.asarray(tokens) / np.diff(edges)),))
    first, last = requests["first_at"], requests["last_at"]
    yield Panel("Time to first token", "ms", _spread(first, latencies.ttft * 1e3, edges))
    yield Panel("Time per output token", "ms", _spread(last, latencies.tpot * 1e3, edges))


def _held(times: Floats, values: Floats, edges: Floats) -> Floats:
    """A value that holds until the next one, at the middle of each interval; 0 before the first."""
    index = np.searchsorted(times, (edges[1:] + edges[:-1]) / 2, side="right")
    return np.concatenate([[0.0], values])[index]


def _spread(times: Floats, values: Floats, edges: Floats) -> tuple[Curve, ...]:
    """Median and greatest of what falls into each interval."""
    order = np.argsort(times, kind="stable")
    cuts = np.searchsorted(times[order], edges[1:-1])
    parts = np.split(values[order], cuts)
    found = [(float(np.median(part)), float(part.max())) if len(part) else (np.nan, np.nan) for part in parts]
    middle, most = np.array(found).T
    return Curve("median", middle), Curve("max", most)


def _panel(panel: Panel, edges: Floats) -> str:
    top = max([float(np.nanmax(c.values, initial=0.0)) for c in panel.curves]) or 1.0
    curves = "".join(
        f'<path d="{_path(curve.values, top)}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
        f'<text x="{MARGIN + 8 + 90 * i}" y="12" style="fill:{colour}">{escape(curve.name)}</text>'
        for i, (curve, colour) in enumerate(zip(panel.curves, COLOURS, strict=False))
    )
    unit = f" ({panel.unit})" if panel.unit else ""
    return (
        f"<h2>{escape(panel.title + unit)}</h2>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 40}" width="{WIDTH}" height="{HEIGHT + 40}">'
        f"{_axes(top, float(edges[-1]))}{curves}</svg>"
    )


def _path(values: Floats, top: float) -> str:
    """Line segments; a gap where a value is missing joins its neighbours."""
    known = np.flatnonzero(~np.isnan(values))
    x = MARGIN + (known + 0.5) / len(values) * (WIDTH - MARGIN)
    y = 20 + HEIGHT * (1 - values[known] / top)
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)) if len(known) else ""


def _axes(top: float, end: float) -> str:
    lines = f"M{MARGIN},20V{HEIGHT + 20}H{WIDTH}"
    levels = "".join(
        f'<text x="{MARGIN - 6}" y="{24 + HEIGHT * (1 - part):.0f}" text-anchor="end">'
        f"{_short(top * part)}</text>"
        for part in (0.0, 0.5, 1.0)
    )
    times = "".join(
        f'<text x="{MARGIN + (WIDTH - MARGIN) * part:.0f}" y="{HEIGHT + 35}" text-anchor="{anchor}">'
        f"{_short(end * part)} s</text>"
        for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    )
    return f'<path d="{lines}" fill="none" stroke="#d1d5db"/>{levels}{times}'


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
