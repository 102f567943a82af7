"""The curves of docs/placement-physics.md, from the cost model.

    python benchmarks/placement_curves.py            writes the page's tables and its charts anew
    python benchmarks/placement_curves.py --check    says what would change, and ends with 3 if anything would

Everything is computed from shapes and the catalogue: the same code gives the same page, byte for byte.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, floor, log10
from pathlib import Path

from corepipe.models.registry import architecture
from corepipe.neuron.chips.catalog import instance
from corepipe.neuron.chips.hardware import Instance
from corepipe.neuron.chips.profiles import PROFILES
from corepipe.neuron.compile.placement import Placement
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.cost import CostModel, LimitingResource, StepShape
from corepipe.neuron.timing.modes import compiler
from corepipe.neuron.timing.timeline import Timeline

ASYNC = PROFILES["async"]
DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "placement-physics.md"
CONTEXT = 256
"""Tokens of context in every decode step."""


@dataclass(frozen=True)
class Setting:
    """A model on an instance."""

    model: str
    format: str
    instance: str

    def cost(self, pipeline: int = 1, tensor: int = 1, data: int = 1) -> CostModel:
        programs = compiler(self.graph, self.hardware, ASYNC)(Placement(pipeline, tensor))
        return CostModel(programs, self.hardware, ASYNC, data)

    @property
    def hardware(self) -> Instance:
        return instance(self.instance)

    @property
    def graph(self) -> Graph:
        return architecture(self.model).graph(FORMATS[self.format], 2048)


SMALL = Setting("smollm2-135m", "int8", "inf1.24xlarge")
LARGE = Setting("llama-3.1-8b", "bf16", "trn1.32xlarge")
WIDE = Setting("llama-3.1-8b", "bf16", "inf2.48xlarge")
EVEN = Setting("tinyllama-1.1b", "bf16", "inf2.48xlarge")
"""A model with a small head, so that its stages take nearly the same time."""
ALONE = StepShape.decode(1, CONTEXT)
BATCH = 8
USERS = 72
"""A number of users that many numbers of batches divide."""


@dataclass(frozen=True)
class Series:
    """A line of a chart: (x, y) points."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A table of the page, and a chart of some of its columns over the first."""

    name: str
    head: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    y: str
    lines: tuple[int, ...]

    def table(self) -> str:
        rule = "|" + "---|" * len(self.head)
        return "\n".join([_row(self.head), rule, *(_row(map(_figure, row)) for row in self.rows)])

    def series(self) -> list[Series]:
        return [Series(self.head[i], tuple((row[0], row[i]) for row in self.rows)) for i in self.lines]


def _row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(value: float) -> str:
    """Returns four significant digits; whole numbers unchanged."""
    return f"{value:.0f}" if value == round(value) and value < 1e6 else f"{value:.4g}"


def pipeline_depth(setting: Setting = SMALL) -> Curve:
    """Returns the time per token of a single request over the number of stages."""
    rows = []
    for depth in (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 27, 30):
        cost = setting.cost(pipeline=depth)
        moved = sum(cost.transfer_seconds(stage, ALONE) for stage in range(depth))
        rows.append((depth, 1e3 * cost.latency(ALONE), 1e6 * moved, 1e6 * max(cost.stage_seconds(ALONE))))
    head = ("stages", "ms a token", "of it hand-over, us", "slowest stage of a full pipe, us")
    return Curve("pipeline-depth", head, tuple(rows), "ms a token", (1,))


def pipeline_bubble(setting: Setting = EVEN, stages: int = 8) -> Curve:
    """Returns the tokens per second over the number of batches that `USERS` sequences are divided into."""
    rows = []
    for flying in (1, 2, 3, 4, 6, 8, 9, 12, 18, 24):
        shape = StepShape.decode(USERS // flying, CONTEXT)
        speed, fill = closed_loop(setting.cost(pipeline=stages), shape, flying)
        rows.append((flying, shape.sequences, speed, 100 * fill))
    head = ("batches in flight", "sequences each", "tokens/s", "pipe full, % of the time")
    return Curve("pipeline-bubble", head, tuple(rows), "tokens/s", (2,))


def closed_loop(cost: CostModel, shape: StepShape, flying: int, batches: int = 400) -> tuple[float, float]:
    """Returns the tokens per second, and the share of time in which all stages work, with `flying` batches in
    flight.

    A batch's next step starts when its last is done, as in decoding.
    """
    timeline = Timeline(cost, PROFILES["ideal"])
    ready: list[float] = []
    now = end = 0.0
    for _ in range(batches):
        if len(ready) == flying:
            now = max(now, heappop(ready))
        timing = timeline.submit(shape, now)
        heappush(ready, timing.ready_at)
        now, end = max(now, timing.accepts_at), max(end, timing.ready_at)
    return batches * shape.sequences / end, timeline.fill


def tensor_floor(setting: Setting = LARGE) -> Curve:
    """Returns the time per token of a single request over the tensor degree, and the part that collectives
    take."""
    rows = []
    for degree in setting.hardware.tensor_degrees:
        cost = setting.cost(tensor=degree)
        together = cost.explain(0, ALONE).seconds[LimitingResource.COLLECTIVES]
        total = cost.latency(ALONE)
        rows.append((degree, 1e3 * total, 1e3 * (total - together), 1e3 * together, 100 * together / total))
    head = ("tensor", "ms a token", "own work, ms", "collectives, ms", "collectives, %")
    return Curve("tensor-floor", head, tuple(rows), "ms a token", (1, 2, 3))


def data_parallel(setting: Setting = WIDE, tensor: int = 2) -> Curve:
    """Returns tokens per second and time per token over the number of replicas, each with a batch of its
    own."""
    rows = []
    shape = StepShape.decode(BATCH, CONTEXT)
    for replicas in (1, 2, 3, 4, 6, 8, 12):
        step = setting.cost(tensor=tensor, data=replicas).latency(shape)
        rows.append((replicas, replicas * shape.sequences / step, 1e3 * step))
    head = ("replicas", "tokens/s", "ms a token")
    return Curve("data-parallel", head, tuple(rows), "tokens/s", (1,))


def curves() -> list[Curve]:
    """Returns all curves of the page."""
    return [pipeline_depth(), pipeline_bubble(), tensor_floor(), data_parallel()]


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 70, 150, 20, 50
COLOURS = ("#2a6fb0", "#7a7a7a", "#c2572b")
TICKS = 4


@dataclass(frozen=True)
class Scale:
    """Converts a curve's numbers to positions in its chart."""

    widest: float
    highest: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.widest

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.highest


def chart(curve: Curve) -> str:
    """Returns an SVG line chart; both axes start at zero."""
    points = [point for line in curve.series() for point in line.points]
    scale = Scale(max(x for x, _ in points), round_up(max(y for _, y in points)))
    parts = [*axes(curve, scale)]
    for i, (line, colour) in enumerate(zip(curve.series(), COLOURS, strict=False)):
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += (
            f'<circle cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in line.points
        )
        parts.append(text(WIDTH - RIGHT + 12, TOP + 10 + 20 * i, line.name, fill=colour))
    box = f'width="{WIDTH}" height="{HEIGHT}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect {box} fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def axes(curve: Curve, scale: Scale) -> Iterator[str]:
    """Yields the grid lines, the numbers of both axes, and their names."""
    for tick in range(TICKS + 1):
        value = scale.highest * tick / TICKS
        y = scale.y(value)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield text(LEFT - 8, y + 4, f"{value:g}", anchor="end")
        value = scale.widest * tick / TICKS
        yield text(scale.x(value), HEIGHT - BOTTOM + 18, f"{value:g}", anchor="middle")
    yield text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, curve.head[0], anchor="middle")
    yield text(LEFT, TOP - 7, curve.y, anchor="middle")


def text(x: float, y: float, content: str, fill: str = "#333333", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{content}</text>'


def round_up(value: float) -> float:
    """Rounds up to two digits, divisible by the ticks."""
    unit = TICKS * 10 ** (floor(log10(value)) - 1)
    return ceil(value / unit) * unit


def page(old: str, found: Sequence[Curve]) -> str:
    """Returns the page with the tables between its marks replaced.  Raises ValueError where a mark is
    missing."""
    for curve in found:
        begin, end = f"<!-- curve: {curve.name} -->\n", "<!-- end -->"
        before, mark, rest = old.partition(begin)
        if not mark or end not in rest:
            raise ValueError(f"{PAGE.name} has no place for {curve.name}")
        after = rest[rest.index(end) :]
        image = f"![{curve.y} over {curve.head[0]}](images/{curve.name}.svg)"
        old = f"{before}{begin}\n{image}\n\n{curve.table()}\n\n{after}"
    return old


def files() -> dict[Path, str]:
    """Returns the current content of the page and its charts."""
    found = curves()
    charts = {DOCS / "images" / f"{curve.name}.svg": chart(curve) for curve in found}
    return {PAGE: page(PAGE.read_text(), found), **charts}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; end with 3 if a file is old")
    check = parser.parse_args().check
    old = [path for path, content in files().items() if not path.exists() or path.read_text() != content]
    for path, content in files().items():
        if path in old and not check:
            path.write_text(content)
        print(f"{path.relative_to(DOCS.parent)}: {'old' if check and path in old else 'as computed'}")
    sys.exit(3 if check and old else 0)


if __name__ == "__main__":
    main()
