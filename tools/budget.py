"""Holds the parts of .ci/run to budgets of processor time.

    python tools/budget.py start                    forgets what was noted
    python tools/budget.py run NAME COMMAND ...     runs it, and notes what it took in build/spent
    python tools/budget.py report                   prints what was noted; exit code 1 where it was too much

Processor time, as machines have other work to do.  Processors differ, too: budgets are for one on which a
fixed piece of Python takes REFERENCE_SECONDS, and are scaled by what it takes here.  A part may take SLACK
times its budget: whoever needs more looks for what can go, or changes the budget with a reason.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SPENT = Path(__file__).resolve().parents[1] / "build" / "spent"

REFERENCE_SECONDS = 0.026
"""What `work` took on the machine on which the budgets were measured (Zen 5, quiet)."""

SLACK = 1.5

BUDGETS = {
    "set-up": 120.0,
    "tests": 600.0,
    "sanitize-address": 300.0,
    "sanitize-thread": 150.0,
    "digest": 60.0,
    "lint": 60.0,
}
"""Seconds of processor time, on the reference machine."""


def main() -> int:
    match sys.argv[1:]:
        case ["run", name, *command] if name in BUDGETS and command:
            return run(name, command)
        case ["report"]:
            return report()
        case ["start"]:
            shutil.rmtree(SPENT, ignore_errors=True)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def run(name: str, command: list[str]) -> int:
    """The command's exit code.  What it took is noted even if it failed."""
    began = time.monotonic()
    done = subprocess.run(command, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    SPENT.mkdir(parents=True, exist_ok=True)
    spent = {"processor": used.ru_utime + used.ru_stime, "clock": time.monotonic() - began}
    (SPENT / f"{name}.json").write_text(json.dumps(spent))
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def report() -> int:
    scale = speed()
    print(f"processor time by part (this processor takes {scale:.2f} times as long as the reference)")
    print(f"{'':20}{'processor':>10}{'budget':>10}{'share':>8}{'clock':>10}")
    over = []
    for name, budget in BUDGETS.items():
        file = SPENT / f"{name}.json"
        if not file.exists():
            continue
        spent = json.loads(file.read_text())
        share = spent["processor"] / (budget * scale)
        print(f"{name:20}{spent['processor']:9.0f}s{budget * scale:9.0f}s{share:8.0%}{spent['clock']:9.0f}s")
        if share > SLACK:
            over.append(name)
    for name in over:
        print(f"{name}: more than {SLACK:.0%} of its budget; see {Path(__file__).name}", file=sys.stderr)
    return 1 if over else 0


def speed() -> float:
    """How many times as long this processor takes as the reference: the best of some tries."""
    times = []
    for _ in range(9):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times) / REFERENCE_SECONDS


def work() -> int:
    """A fixed piece of Python: arithmetic, dictionaries and strings."""
    counts: dict[str, int] = {}
    for number in range(200_000):
        key = str(number % 977)
        counts[key] = counts.get(key, 0) + number * number % 31
    return sum(counts.values())


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
