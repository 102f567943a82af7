"""Predicted traffic of published NKI kernels against the counters of a profiler.

    python benchmarks/nki_traffic.py ../AccelOpt                        prints a row a kernel, in MB
    python benchmarks/nki_traffic.py ../AccelOpt --without moved_loads  without a rule of the compiler

Kernels and measurements stay outside of the repository: give a checkout of zhang677/AccelOpt (47e29a7), and a
table of measurements with --rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from nki_calibration import ROWS, Row, read_rows

from corepipe.nki.timing.compiled import Compiled, compiled
from corepipe.nki.timing.profile import PROFILES

COUNTERS = {
    "read": "hbm_read_bytes",
    "written": "hbm_write_bytes",
    "spilled": "spill_save_bytes",
    "reloaded": "spill_reload_bytes",
}

BOUND = 0.25
"""Part by which a prediction may differ."""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="checkout of AccelOpt")
    parser.add_argument("--rows", type=Path, default=ROWS, help="table of measurements")
    parser.add_argument("--without", action="append", default=[], choices=[r.name for r in PROFILES[True]])
    args = parser.parse_args(argv)
    rules = [rule for rule in PROFILES[True] if rule.name not in args.without]
    rows = [row for row in read_rows(args.rows, args.path, args.path) if row.raw["hbm_read_bytes"]]
    right = dict.fromkeys(COUNTERS, 0)
    print(f"{'':22}" + "".join(f"{name:>30}" for name in COUNTERS))
    for row in rows:
        cells = list(cells_of(row, compiled(row.recorder, rules)))
        print(f"{row.name.split('/')[1]:22}" + "".join(f"{text:>30}" for text, _ in cells), flush=True)
        for name, (_, close) in zip(COUNTERS, cells, strict=True):
            right[name] += close
    print(f"{f'within {BOUND:.0%}':22}" + "".join(f"{f'{n} of {len(rows)}':>30}" for n in right.values()))


def cells_of(row: Row, found: Compiled) -> Iterator[tuple[str, bool]]:
    """Yields for each counter the two figures with their difference, and whether it is within the bound."""
    for name, counter in COUNTERS.items():
        predicted, measured = getattr(found.traffic, name) / 1e6, (row.number(counter) or 0.0) / 1e6
        close = abs(predicted - measured) <= BOUND * measured
        difference = f"{predicted / measured - 1:+.0%}" if measured else ""
        yield f"{predicted:.1f} / {measured:.1f} {difference:>6}", close


if __name__ == "__main__":
    main(sys.argv[1:])
