"""Writes a part of the digest that does not exist yet, and refuses any other.

    python -m tests.digest.write programs times tokens
    python -m tests.digest.write times --recalibrated "constants of v3 fitted to ..."

Run it at the root of the repository.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.digest import cases, names, parts, programs, times, tokens
from tests.digest.forms import canonical

PROCESSES = 2


def program_entry(model: str) -> tuple[str, str]:
    return model, canonical(programs.read(model, cases.replicas(model)))


def time_entry(model: str) -> tuple[str, str]:
    return model, canonical(times.read(model, cases.timed(model)))


def entries(kind: str) -> dict[str, str]:
    """Returns all entries of a kind, by name."""
    if kind == "tokens":
        return {name: canonical(entry) for name, entry in tokens.read(cases.answered()).items()}
    entry: Callable[[str], tuple[str, str]] = program_entry if kind == "programs" else time_entry
    twins = cases.twins()
    aliases = {name: canonical({"as": twin}) for name, twin in twins.items() if name != twin}
    with ProcessPoolExecutor(PROCESSES) as pool:
        return {**aliases, **dict(pool.map(entry, sorted(set(twins.values())), chunksize=4))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=parts.KINDS)
    parser.add_argument("--recalibrated", metavar="REASON", default="", help="why times get a new part")
    parser.add_argument("--directory", type=Path, default=parts.DATA)
    args = parser.parse_args()
    for kind in args.kinds:
        started = time.perf_counter()
        try:
            number = parts.next_number(kind, args.recalibrated, args.directory)
        except parts.PartExists as error:
            sys.exit(f"digest: {error}")
        rows = [[row.kind, row.ours, row.neutral] for row in names.rows()]
        part = parts.Part(kind, number, args.recalibrated, entries(kind), rows)
        path = parts.write(part, args.directory)
        seconds = time.perf_counter() - started
        print(f"{path.name}: {len(part.entries)} entries, {path.stat().st_size} bytes, {seconds:.0f} s")


if __name__ == "__main__":
    main()
