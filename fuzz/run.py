"""Runs targets under atheris and prints the results: `python -m fuzz.run [TARGET ...] --minutes M`.

Every target runs in a process of its own for its share of the minutes; inputs that make it fail are kept in
build/fuzz/TARGET, with those that reached new code.  The exit code is 1 where a target failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

BUILD = Path(__file__).parent.parent / "build" / "fuzz"
SLOW_SECONDS = 10
"""The limit of processor time: an input that takes longer is a finding."""
STUCK_SECONDS = 600
"""libFuzzer's own limit, which also counts the time that other processes take on a busy machine."""
MEMORY_MIB = 3072


def fuzz(target: str, options: list[str]) -> None:
    """Runs libFuzzer in this process, which ends with it."""
    import atheris  # noqa: PLC0415 -- only here: it is not needed to list or to test the targets

    with atheris.instrument_imports(include=["corepipe", "jinja2"]):
        from fuzz.targets import TARGETS, check  # noqa: PLC0415 -- what is imported here is watched

    def run_one(data: bytes) -> None:
        started = time.process_time()
        TARGETS[target](data)
        check(time.process_time() - started < SLOW_SECONDS, f"it takes more than {SLOW_SECONDS} s")

    atheris.Setup([target, *options], run_one)
    atheris.Fuzz()


def run(target: str, seconds: int) -> tuple[str, int]:
    """Runs a target in a process of its own.  Returns libFuzzer's last lines and its exit code."""
    from fuzz import seeds  # noqa: PLC0415

    corpus = BUILD / target / "corpus"
    seeds.write(target, corpus)
    options = [f"-max_total_time={seconds}", f"-timeout={STUCK_SECONDS}", f"-rss_limit_mb={MEMORY_MIB}"]
    options += [
        "-print_final_stats=1",
        "-max_len=8192",
        f"-artifact_prefix={BUILD / target}/",
        "-verbosity=1",
    ]
    command = [sys.executable, "-m", "fuzz.run", "--inside", target, "--", *options, str(corpus)]
    with (BUILD / target / "log").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=log, check=False)  # noqa: S603 -- our own
    return (BUILD / target / "log").read_text(errors="replace"), done.returncode


def row(target: str, log: str, code: int) -> tuple[str, str, str, str]:
    """Returns a row of the table: the target, its executions, the code reached, and its end."""
    runs = re.findall(r"stat::number_of_executed_units: (\d+)|#(\d+)\s", log)
    features = re.findall(r"ft: (\d+)", log)
    count = max((int(a or b) for a, b in runs), default=0)
    ended = "ok" if code == 0 else f"failed ({code}): build/fuzz/{target}"
    return target, f"{count:,}", features[-1] if features else "-", ended


def main() -> None:
    if "--inside" in sys.argv:
        at = sys.argv.index("--inside")
        return fuzz(sys.argv[at + 1], sys.argv[at + 3 :])
    from fuzz.targets import TARGETS  # noqa: PLC0415

    parser = argparse.ArgumentParser(description="Fuzzes what reads bytes of strangers.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together")
    given = parser.parse_args()
    if unknown := set(given.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))} (known: {', '.join(TARGETS)})")
    chosen = given.targets or list(TARGETS)
    seconds = max(1, int(given.minutes * 60 / len(chosen)))
    table = Table("target", "executions", "features", "")
    failed = False
    for target in chosen:
        Console(stderr=True).print(f"{target}: {seconds} s")
        log, code = run(target, seconds)
        failed |= code != 0
        table.add_row(*row(target, log, code))
    Console().print(table)
    sys.exit(failed)


if __name__ == "__main__":
    main()
