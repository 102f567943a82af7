"""Processor time of `corepipe simulate` and `corepipe plan`, as a user runs them.

    .venv/bin/python benchmarks/simulation.py [--requests 10000] [--rounds 3] [--against OTHER]

Each command is a process of its own, and its time includes its start, which a run of one request shows.  One
replica and 128 under a router have the same load each, and ten times the requests.  --against: the commands
of another build, its .venv/bin/corepipe, run in turn with these, and what both print is compared.  Medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

COREPIPE = Path(sys.executable).with_name("corepipe")
LENGTHS = ["--input-len", "512", "--output-len", "200"]
SPREAD = ["--input-len", "lognormal:600:0.8:4000", "--output-len", "lognormal:150:0.7:1000"]
LARGE = ["llama-3.1-70b", "--instance", "trn1.32xlarge", "--tensor", "32", "--rate", "2.78", *LENGTHS]
SHARED = ["llama-3.1-70b", "--instance", "trn2.48xlarge", "--tensor", "16", "--rate", "2", *SPREAD]
SMALL = ["llama-3.2-1b", "--instance", "trn2.48xlarge", "--lnc", "1", "--tensor", "1", *SPREAD]
ALONE, FLEET = "1 replica", "128 replicas"


def commands(requests: int) -> dict[str, list[str]]:
    """Returns the arguments of each command by its name in the table."""
    some, many = (["--requests", str(count), "--seed", "7"] for count in (requests, 10 * requests))
    return {
        "its start": ["simulate", *LARGE, "--requests", "1"],
        "70B on trn1": ["simulate", *LARGE, *some],
        "70B, shared prompts": ["simulate", *SHARED, "--prefix-tree", "1x512,8x256", *some],
        ALONE: ["simulate", *SMALL, "--data", "1", "--rate", "2", *many],
        FLEET: ["simulate", *SMALL, "--data", "128", "--rate", "256", *many],
        "plan 8B": ["plan", "llama-3.1-8b", "--ttft", "1s", "--tpot", "50ms", "--rate", "2", *LENGTHS],
        "plan 70B": ["plan", "llama-3.1-70b", "--ttft", "2s", "--tpot", "60ms", "--rate", "1", *LENGTHS],
        "plan 7B, many": ["plan", "qwen2.5-7b", "--ttft", "500ms", "--tpot", "20ms", "--rate", "50", *SPREAD],
    }


@dataclass(slots=True)
class Runs:
    """Processor seconds of a command, round by round, and its last output."""

    seconds: list[float] = field(default_factory=list)
    printed: bytes = b""

    def add(self, program: Path, arguments: list[str]) -> None:
        """Runs it once more.  Raises CalledProcessError where it fails."""
        before = _processor_seconds()
        done = subprocess.run([program, *arguments, "--json"], stdout=subprocess.PIPE, check=True)
        self.seconds.append(_processor_seconds() - before)
        self.printed = done.stdout

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def _processor_seconds() -> float:
    """Processor seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the corepipe command of another build")
    given = parser.parse_args()
    medians = {}
    for name, arguments in commands(given.requests).items():
        ours, other = Runs(), Runs()
        for _ in range(given.rounds):
            ours.add(COREPIPE, arguments)
            if given.against is not None:
                other.add(given.against, arguments)
        medians[name] = ours.median
        print(f"{name:<20} {ours.median:6.2f} s{_compared(ours, other)}", flush=True)
    start = medians["its start"]
    ratio = (medians[ALONE] - start) / max(1e-9, medians[FLEET] - start)
    print(f"128 replicas: {ratio:.2f} of one's requests a second, without the start")


def _compared(ours: Runs, other: Runs) -> str:
    if not other.seconds:
        return ""
    same = "the same" if ours.printed == other.printed else "OTHER"
    return f"   there {other.median:6.2f} s, {other.median / ours.median:.2f} times as long, {same} bytes"


if __name__ == "__main__":
    main()
