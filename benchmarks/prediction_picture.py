"""The picture of docs/prediction.md: measured by predicted time, by kind of figure, with intervals.

python benchmarks/prediction_picture.py            # writes docs/prediction.svg
python benchmarks/prediction_picture.py --check    # exit 1 where the file is another
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path

from corepipe.neuron.timing.uncertainty import shipped_uncertainty
from corepipe.planning.calibration.coverage import Covered, left_out

FILE = Path(__file__).parent.parent / "docs" / "prediction.svg"

KINDS = (
    "decode", "first token", "throughput", "encoder",
    "decode, under load", "first token, under load", "throughput, under load",
)  # fmt: skip
WIDTH, ROW, LEFT, TOP = 900, 74, 190, 46
REACH = log(5)
"""End of the axis: larger errors are drawn there."""

LEVELS = (0.2, 0.5, 1.0, 2.0, 5.0)

STYLE = """
 text{font:13px system-ui,sans-serif;fill:#374151}
 .small{font-size:11px}
 .rule{stroke:#9ca3af;stroke-opacity:.5}
 .one{stroke:#6b7280}
 .band{fill:#3b82f6;fill-opacity:.22}
 .in{fill:#2563eb;fill-opacity:.55}
 .out{fill:#dc2626}
 @media (prefers-color-scheme:dark){
  text{fill:#d1d5db}
  .one{stroke:#9ca3af}
  .in{fill:#93c5fd;fill-opacity:.6}
  .out{fill:#f87171}
 }
"""


def picture(held: Sequence[Covered]) -> str:
    """Returns one strip per kind: a dot for each left-out run, and the median interval."""
    height = TOP + ROW * len(KINDS) + 30
    strips = "".join(_strip(kind, number, held) for number, kind in enumerate(KINDS))
    rules = "".join(_rule(level, height) for level in LEVELS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>Measured time by predicted time of left-out runs, by kind of figure</title>"
        f"<style>{STYLE}</style>"
        f'<text x="{LEFT}" y="18">measured time / predicted time; each dot a run whose model was left out; '
        f"band: the 90 % interval (median width)</text>{rules}{strips}</svg>\n"
    )


def _x(error: float) -> float:
    """Returns the position of a logarithm."""
    return LEFT + (WIDTH - LEFT - 20) * (min(REACH, max(-REACH, error)) + REACH) / (2 * REACH)


def _rule(level: float, height: int) -> str:
    x = _x(log(level))
    name = "rule" if level != 1 else "one"
    return (
        f'<line class="{name}" x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{height - 22}"/>'
        f'<text class="small" x="{x:.1f}" y="{height - 6}" text-anchor="middle">x {level:g}</text>'
    )


def _strip(kind: str, number: int, held: Sequence[Covered]) -> str:
    points = [one for one in held if one.residual.point.kind == kind and not one.residual.point.tail]
    y = TOP + ROW * number
    inside = sum(one.holds for one in points)
    label = (
        f'<text x="8" y="{y + 22}">{kind}</text>'
        f'<text class="small" x="8" y="{y + 40}">{inside} of {len(points)} runs within</text>'
    )
    if not points:
        return label
    low, high = (sorted(ends)[len(points) // 2] for ends in _ends(points))
    band = (
        f'<rect class="band" x="{_x(low):.1f}" y="{y}" width="{_x(high) - _x(low):.1f}" height="{ROW - 16}"/>'
    )
    dots = "".join(
        f'<circle class="{"in" if one.holds else "out"}" cx="{_x(one.residual.error):.1f}" '
        f'cy="{y + 6 + (ROW - 28) * (i * 37 % 101) / 100:.1f}" r="2.6"/>'
        for i, one in enumerate(points)
    )
    return label + band + dots


def _ends(points: Sequence[Covered]) -> tuple[list[float], list[float]]:
    return [log(one.interval.low) for one in points], [log(one.interval.high) for one in points]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    new = picture(left_out(shipped_uncertainty().residuals))
    if args.check:
        sys.exit(not FILE.is_file() or new != FILE.read_text(encoding="utf-8"))
    FILE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
