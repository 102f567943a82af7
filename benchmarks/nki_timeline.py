"""Pictures of docs/nki.md: what each engine does, step by step, in a kernel's five steps from naive to fast.

    python benchmarks/nki_timeline.py            writes docs/images/nki-*.svg and the tables of docs/nki.md
    python benchmarks/nki_timeline.py --check    exit 1 where a file would be another

All steps of a kernel are drawn at the same scale: a window of the same length from the start of each.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from corepipe import nki
from corepipe.nki.core.instructions import Engine
from corepipe.nki.run.simulate import Result
from corepipe.nki.timing.times import Gap

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "nki"
PAGE = ROOT / "docs" / "nki.md"
STORIES = {"scan": 60.0, "rmsnorm_product": 60.0}
"""Files, and the microseconds that their pictures show."""
TARGET = "trn1"
FIRST = "examples/nki/rmsnorm.py"
"""The kernel of the page's first run."""

WIDTH, LEFT, RIGHT, LANE, TITLE, GAP = 760, 70, 60, 13, 20, 10
LANES = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD, Engine.DMA)
NAMES = dict(zip(LANES, ("Tensor", "Vector", "Scalar", "GpSimd", "DMA"), strict=True))

STYLE = """
 text{font:11px system-ui,sans-serif;fill:#374151}
 .step{font-weight:600}
 .lane{fill:#9ca3af;fill-opacity:.18}
 .tensor{fill:#2563eb}.vector{fill:#059669}.scalar{fill:#d97706}.gpsimd{fill:#9333ea}.dma{fill:#6b7280}
 .gap{fill:#9ca3af;fill-opacity:.3}
 @media (prefers-color-scheme:dark){text{fill:#d1d5db}}
"""


def module(name: str) -> ModuleType:
    """Returns an example, imported while the language's modules are installed."""
    spec = importlib.util.spec_from_file_location(f"nki_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    with nki.installed():
        spec.loader.exec_module(found)
    return found


def steps(name: str) -> Iterator[tuple[str, str, Result]]:
    """Yields a story's kernels: the name, the first line of the docstring, and the times."""
    example = module(name)
    inputs = example.get_inputs()
    for number in range(1, 6):
        entry = f"{name}_{number}"
        kernel = getattr(example, entry)
        yield entry, _told(kernel), nki.simulate(kernel, *inputs, target=TARGET, values=False)


def _told(kernel: object) -> str:
    """Returns a kernel's docstring in one line."""
    return " ".join((kernel.__doc__ or "").split())


def picture(name: str, results: Sequence[tuple[str, str, Result]], window: float) -> str:
    """Returns one panel per step with a lane per engine."""
    panel = TITLE + LANE * len(LANES) + GAP
    height = panel * len(results) + 20
    panels = "".join(_panel(entry, result, window, panel * i) for i, (entry, _, result) in enumerate(results))
    marks = "".join(_mark(window * i / 4, window, height) for i in range(5))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>The engines in the first {window:g} us of each step of {name}</title>"
        f"<style>{STYLE}</style>{panels}{marks}</svg>\n"
    )


def _panel(entry: str, result: Result, window: float, top: int) -> str:
    text = f'<text class="step" x="{LEFT}" y="{top + 14}">{entry}: {result.latency_us:,.0f} us</text>'
    lanes = (_lane(result, engine, window, top + TITLE + LANE * i) for i, engine in enumerate(LANES))
    gaps = (_gap(gap, window, top + TITLE) for gap in result.times.gaps)
    return text + "".join(lanes) + "".join(gaps)


def _gap(gap: Gap, window: float, top: int) -> str:
    """Returns a band over all lanes where turns of a loop were not drawn, as far as it is in the window."""
    inner = WIDTH - LEFT - RIGHT
    low, high = (LEFT + round(min(inner, t * 1e6 / window * inner)) for t in (gap.start, gap.end))
    if high - low < 4:
        return ""
    words = f"{gap.turns:,} turns like those before" if high - low > 160 else ""
    height = LANE * len(LANES) - 3
    return (
        f'<rect class="gap" x="{low}" y="{top}" width="{high - low}" height="{height}"/>'
        f'<text x="{(low + high) // 2}" y="{top + height // 2 + 4}" text-anchor="middle">{words}</text>'
    )


def _lane(result: Result, engine: Engine, window: float, top: int) -> str:
    share = result.engines[engine].busy / result.times.seconds if engine in result.engines else 0.0
    inner = WIDTH - LEFT - RIGHT
    path = "".join(f"M{a} {top}h{b - a}v{LANE - 3}h{a - b}z" for a, b in _pixels(result, engine, window))
    return (
        f'<text x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{NAMES[engine]}</text>'
        f'<rect class="lane" x="{LEFT}" y="{top}" width="{inner}" height="{LANE - 3}"/>'
        f'<path class="{engine}" d="{path}"/>'
        f'<text x="{WIDTH - RIGHT + 6}" y="{top + 9}">{share:.0%}</text>'
    )


def _pixels(result: Result, engine: Engine, window: float) -> Iterator[tuple[int, int]]:
    """Yields runs of pixels of which the engine is busy for at least half."""
    inner = WIDTH - LEFT - RIGHT
    busy = [0.0] * inner
    for span in result.times.spans:
        if span.engine is engine:
            low, high = (min(inner, t * 1e6 / window * inner) for t in (span.start, span.end))
            for pixel in range(int(low), min(inner, int(high) + 1)):
                busy[pixel] += max(0.0, min(high, pixel + 1) - max(low, pixel))
    start = None
    for pixel, share in enumerate([*busy, 0.0]):
        if share >= 0.5 and start is None:
            start = pixel
        elif share < 0.5 and start is not None:
            yield LEFT + start, LEFT + pixel
            start = None


def _mark(time: float, window: float, height: int) -> str:
    x = LEFT + (WIDTH - LEFT - RIGHT) * time / window
    return f'<text x="{x:.0f}" y="{height - 6}" text-anchor="middle">{time:g} us</text>'


def table(results: Sequence[tuple[str, str, Result]]) -> str:
    """Returns the rows of a story: times, what sets them, HBM traffic, and what the step changed."""
    rows = ["| step | us | bound | HBM, MB | what is new |", "|---|---|---|---|---|"]
    for entry, told, result in results:
        moved = (result.traffic.read + result.traffic.written) / 1e6
        bound = result.times.bound.partition(";")[0]
        rows.append(f"| `{entry}` | {result.latency_us:,.0f} | {bound} | {moved:,.1f} | {told} |")
    return "\n".join(rows)


def first_run() -> str:
    """Returns what the command prints of the first kernel."""
    command = [sys.executable, "-m", "corepipe", "nki", FIRST]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return f"```text\n{printed.rstrip()}\n```"


def with_parts(page: str, parts: dict[str, str]) -> str:
    """Returns the page with the text of now between the marks of each part."""
    for name, rows in parts.items():
        marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page = re.sub(marks, lambda m, rows=rows: f"{m[1]}{rows}\n{m[2]}", page, flags=re.DOTALL)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    files, parts = {}, {"first run": first_run()}
    for name, window in STORIES.items():
        results = list(steps(name))
        files[ROOT / "docs" / "images" / f"nki-{name.replace('_', '-')}.svg"] = picture(name, results, window)
        parts[f"steps of {name}"] = table(results)
    files[PAGE] = with_parts(PAGE.read_text(encoding="utf-8"), parts)
    old = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    if args.check:
        sys.exit(", ".join(path.name for path in old) or 0)
    for path in old:
        path.write_text(files[path], encoding="utf-8")


if __name__ == "__main__":
    main()
