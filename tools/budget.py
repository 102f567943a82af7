"""Holds the parts of .ci/run to budgets of processor time.

    python tools/budget.py start                    forgets what was noted
    python tools/budget.py run NAME COMMAND ...     runs it, and notes what it took in build/spent
    python tools/budget.py report                   prints what was noted; exit code 1 where it was too much

Processor time, as machines have other work to do.  Processors differ, too: budgets are for one on which a
fixed piece of Python takes REFERENCE_SECONDS and a fixed file of C++ REFERENCE_COMPILED, and are scaled by
what these take here.  A part may take SLACK times its budget: whoever needs more looks for what can go, or
changes the budget with a reason.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SPENT = Path(__file__).resolve().parents[1] / "build" / "spent"

REFERENCE_SECONDS = 0.026
"""Seconds of `worked` on the machine on which the budgets were measured (Zen 5, quiet)."""

REFERENCE_COMPILED = 2.2
"""Seconds of `compiled` on that machine."""

SLACK = 2.0
"""Other work on the same cores makes processor time longer, too: by up to a half, where it was seen."""

BUDGETS = {
    "set-up": (130.0, True),
    "tests": (450.0, False),
    "sanitize-address": (290.0, True),
    "sanitize-thread": (90.0, True),
    "digest": (160.0, False),
    "lint": (35.0, False),
}
"""Seconds of processor time on the reference machine; True where a compiler takes most of them."""


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
    speeds = {False: speed(worked, REFERENCE_SECONDS), True: speed(compiled, REFERENCE_COMPILED)}
    print(
        f"processor time by part (this processor takes {speeds[False]:.2f} times as long as the reference, "
        f"and {speeds[True]:.2f} times to compile)"
    )
    print(f"{'':20}{'processor':>10}{'budget':>10}{'share':>8}{'clock':>10}")
    over = []
    for name, (seconds, compiles) in BUDGETS.items():
        file = SPENT / f"{name}.json"
        if not file.exists():
            continue
        spent, budget = json.loads(file.read_text()), seconds * speeds[compiles]
        share = spent["processor"] / budget
        print(f"{name:20}{spent['processor']:9.0f}s{budget:9.0f}s{share:8.0%}{spent['clock']:9.0f}s")
        if share > SLACK:
            over.append(name)
    for name in over:
        print(f"{name}: more than {SLACK:.0%} of its budget; see {Path(__file__).name}", file=sys.stderr)
    return 1 if over else 0


def speed(measure: Callable[[], float], reference: float) -> float:
    """The time that this processor takes, as a multiple of the reference's: the best of some tries."""
    return min(measure() for _ in range(5)) / reference


def worked() -> float:
    """Seconds that a fixed piece of Python takes: arithmetic, dictionaries and strings."""
    began = time.process_time()
    counts: dict[str, int] = {}
    for number in range(200_000):
        key = str(number % 977)
        counts[key] = counts.get(key, 0) + number * number % 31
    return time.process_time() - began


def compiled() -> float:
    """Seconds that the compiler takes for a fixed file of templates; those of the reference without one."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return REFERENCE_COMPILED
    source = b"#include <regex>\nbool f(const char* s) { return std::regex_match(s, std::regex(s)); }\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [compiler, "-std=c++17", "-O2", "-x", "c++", "-S", "-", "-o", "-"]
    subprocess.run(command, input=source, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.exit(main())
