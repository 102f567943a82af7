"""Plants faults and tells how many of them the short suite finds.

`python -m tests.planted.run --contexts` finds out which test runs which line, file by file of the tests; what
was measured stays in `build/planted`, and only files that have changed are measured again.

`python -m tests.planted.run --seed 0 --faults 120` tries the faults.  The results are rows of
`tests/data/planted.tsv`: a fault that has a row there is not tried again unless `--again` says so.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import partial

from tests.planted import contexts, faults, table
from tests.planted.choice import of_long, of_short, stages
from tests.planted.faults import Fault
from tests.planted.pytest_run import become_subreaper
from tests.planted.table import Row
from tests.planted.trees import Tree
from tests.planted.trial import Limits, Trial

Numbered = tuple[int, list[Fault]]


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was begun is ended, and the tree is mended
    if args.contexts is not None:
        contexts.collect(contexts.files_of_tests(args.contexts or ("tests",)))
        return 0
    chosen = list(enumerate(faults.chosen(args.seed, args.faults), 1))
    wanted = [one for one in chosen if _is_wanted(one, args)]
    if args.list:
        _print(wanted, Limits(args.short_seconds, args.long_seconds))
        return 0
    rows = _known(chosen)
    todo = [one for one in wanted if args.again or _is_open(rows.get(one[0]), args)]
    before = {row.key: row.test for row in table.read() if "::" in row.test}
    for row in _results(todo, args, before):
        rows |= {
            one.number: one for one in table.read() if one.number not in rows
        }  # of a run beside this one
        rows[row.number] = row
        table.write(rows.values())
        print(f"{row.number} {row.found_by}: {row.test} ({row.seconds} s): {row.file}:{row.line}", flush=True)
    if args.verify:
        rows = _verified(rows)
        table.write(rows.values())
    print(table.summary(sorted(rows.values(), key=lambda row: row.number)))
    whole = len(rows) == len(chosen) and all(row.found_by != table.UNTRIED for row in rows.values())
    return int(whole and table.share(_counted(rows)) < table.GOAL)


def _verified(rows: dict[int, Row]) -> dict[int, Row]:
    """Without the rows whose tests fail with no fault, too."""
    tests = sorted({row.test for row in rows.values() if "::" in row.test})
    unfit = set(_trial(0, Limits(0, 0)).without_a_fault(tests))
    for test in sorted(unfit):
        print(f"fails without a fault: {test}")
    return {number: row for number, row in rows.items() if row.test not in unfit}


def _counted(rows: dict[int, Row]) -> list[Row]:
    same = table.equivalent()
    return [row for row in rows.values() if row.key not in same]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=120, help="in all areas together")
    parser.add_argument("--first", type=int, default=1, help="the number of the first fault to try")
    parser.add_argument("--last", type=int, default=1 << 30, help="the number of the last one")
    parser.add_argument("--areas", nargs="*", default=[], help="faults of these areas alone")
    parser.add_argument("--workers", type=int, default=1, help="trees in which faults are tried side by side")
    parser.add_argument("--tree", type=int, default=0, help="number of the first tree, for runs side by side")
    parser.add_argument("--again", action="store_true", help="also faults that have a row in the table")
    parser.add_argument(
        "--verify", action="store_true", help="then runs the tests that found one without any"
    )
    parser.add_argument("--list", action="store_true", help="the faults and the tests that would be run")
    parser.add_argument("--short-seconds", type=float, default=300.0, help="of short tests for one fault")
    parser.add_argument(
        "--long-seconds", type=float, default=300.0, help="for each file of long tests; 0: none"
    )
    parser.add_argument(
        "--contexts",
        nargs="*",
        metavar="PATH",
        help="measures tests of these files or folders; all without one",
    )
    return parser.parse_args()


def _is_wanted(one: Numbered, args: argparse.Namespace) -> bool:
    number, (fault, *_) = one
    return args.first <= number <= args.last and (not args.areas or fault.area in args.areas)


def _is_open(row: Row | None, args: argparse.Namespace) -> bool:
    """True if there is something left to try."""
    return row is None or (row.found_by == table.UNTRIED and args.long_seconds > 0)


def _known(chosen: list[Numbered]) -> dict[int, Row]:
    """The table's rows of these faults, by their numbers."""
    rows = {row.number: row for row in table.read()}
    return {
        number: rows[number] for number, some in chosen if number in rows and _is_same(rows[number], some)
    }


def _is_same(row: Row, alternatives: list[Fault]) -> bool:
    return any(row.key == fault.key and row.after == fault.after for fault in alternatives)


def _print(wanted: list[Numbered], limits: Limits) -> None:
    measured = contexts.load()
    for number, (fault, *_) in wanted:
        short = [test for stage in stages(of_short(fault, measured), limits.short) for test in stage.tests]
        print(f"{number} {fault}\n    {len(short)} short: {' '.join(short[:3])}")
        print(f"    long: {' '.join(of_long(fault, measured))}")


def _results(todo: list[Numbered], args: argparse.Namespace, before: Mapping[str, str]) -> Iterator[Row]:
    """In the order in which they end; before: by keys of faults, the tests that found them the last time."""
    limits = Limits(args.short_seconds, args.long_seconds)
    if args.workers == 1:
        trial = _trial(args.tree, limits)
        yield from (trial.row(*one, _before(one, before)) for one in todo)
        return
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[Row] = context.Queue()
    parts = [todo[number :: args.workers] for number in range(args.workers)]
    processes = [
        context.Process(target=partial(_work, args.tree + number, part, limits, before, queue))
        for number, part in enumerate(parts)
    ]
    for process in processes:
        process.start()
    for _ in todo:
        yield queue.get()
    for process in processes:
        process.join()


def _work(
    number: int,
    todo: list[Numbered],
    limits: Limits,
    before: Mapping[str, str],
    queue: multiprocessing.Queue[Row],
) -> None:
    trial = _trial(number, limits)
    for one in todo:
        queue.put(trial.row(*one, _before(one, before)))


def _before(one: Numbered, before: Mapping[str, str]) -> list[str]:
    """The test that found the fault the last time, if one did."""
    return [test for fault in one[1][:1] if (test := before.get(fault.key))]


def _trial(number: int, limits: Limits) -> Trial:
    become_subreaper()
    tree = Tree(number)
    tree.make()
    return Trial(tree, limits)


if __name__ == "__main__":
    raise SystemExit(main())
