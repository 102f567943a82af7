"""Pages in HTML with curves in inline SVG; they load nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT, MARGIN = 860, 150, 60
COLOURS = ("#2563eb", "#dc2626", "#059669", "#9ca3af")

_STYLE = (
    "body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:960px;color:#1f2937}"
    "svg{display:block;margin:.3em 0 1.2em}text{font-size:11px;fill:#6b7280}h2{font-size:15px;margin:0}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.1em .8em;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of `values` at `x`; NaN where there is none.  dots: mark each value as a measurement."""

    name: str
    x: Floats
    values: Floats
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with curves over one axis from 0 to `end`, each axis with its unit."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    end: float
    x_unit: str = "s"


def page(title: str, about: str, panels: Iterable[Panel], tables: str = "") -> str:
    """Returns the whole page; `tables` is HTML."""
    shown = "".join(svg(panel) for panel in panels)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(about)}</p>{tables}{shown}</html>\n"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns the HTML of a table whose first row is its head."""
    head, *body = (("td" if number else "th", row) for number, row in enumerate(rows))
    lines = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in (head, *body))
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def spread(times: Floats, values: Floats, edges: Floats) -> tuple[Curve, ...]:
    """Returns the median and the maximum of the values in each interval of time."""
    order = np.argsort(times, kind="stable")
    cuts = np.searchsorted(times[order], edges[1:-1])
    parts = np.split(values[order], cuts)
    found = [(float(np.median(part)), float(part.max())) if len(part) else (np.nan, np.nan) for part in parts]
    median, most = np.array(found).T
    return Curve("median", middle(edges), median), Curve("max", middle(edges), most)


def middle(edges: Floats) -> Floats:
    """Returns the middle of each interval."""
    found: Floats = (edges[1:] + edges[:-1]) / 2
    return found


def svg(panel: Panel) -> str:
    """Returns one panel with its title as SVG."""
    top = max([float(np.nanmax(c.values, initial=0.0)) for c in panel.curves]) or 1.0
    curves = "".join(
        _drawn(curve, panel.end, top, colour)
        + f'<text x="{MARGIN + 8 + 110 * i}" y="12" style="fill:{colour}">{escape(curve.name)}</text>'
        for i, (curve, colour) in enumerate(zip(panel.curves, COLOURS, strict=False))
    )
    unit = f" ({panel.unit})" if panel.unit else ""
    return (
        f"<h2>{escape(panel.title + unit)}</h2>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 40}" width="{WIDTH}" height="{HEIGHT + 40}">'
        f"{_axes(top, panel.end, panel.x_unit)}{curves}</svg>"
    )


def _drawn(curve: Curve, end: float, top: float, colour: str) -> str:
    """Draws the segments of a curve; a missing value is skipped and its neighbours are joined."""
    known = np.flatnonzero(~np.isnan(curve.values))
    x = MARGIN + curve.x[known] / end * (WIDTH - MARGIN)
    y = 20 + HEIGHT * (1 - curve.values[known] / top)
    points = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)]
    path = "M" + "L".join(points) if points else ""
    dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in zip(x, y, strict=True)]
    line = f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
    return line + "".join(dots) * curve.dots


def _axes(top: float, end: float, x_unit: str) -> str:
    lines = f"M{MARGIN},20V{HEIGHT + 20}H{WIDTH}"
    levels = "".join(
        f'<text x="{MARGIN - 6}" y="{24 + HEIGHT * (1 - part):.0f}" text-anchor="end">'
        f"{_short(top * part)}</text>"
        for part in (0.0, 0.5, 1.0)
    )
    times = "".join(
        f'<text x="{MARGIN + (WIDTH - MARGIN) * part:.0f}" y="{HEIGHT + 35}" text-anchor="{anchor}">'
        f"{_short(end * part)} {escape(x_unit)}</text>"
        for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end"))
    )
    return f'<path d="{lines}" fill="none" stroke="#d1d5db"/>{levels}{times}'


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
