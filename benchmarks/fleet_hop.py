"""Cost of a fleet: an engine behind a host of Ray, and one of the server's own, in turn.

    PYTHONPATH=. python benchmarks/fleet_hop.py [MODEL] [--rounds 9]

Both on this machine, over loopback; it needs corepipe[ray].  Tokens a second at 1 and 8 streams: the fleet's
over the local one's, and milliseconds that the first token of a short prompt comes later.  Then the memory
(PSS) that a machine of the fleet takes.

It suits busy machines: each round gives one ratio, of two successive runs in alternating order; the median of
these is printed, with the quartiles.  And the processor time per token of all processes that answer, which
other work hardly changes: the server's, and in a fleet the host's and its engines', but not Ray's own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import psutil
from works import Work, speed  # the script beside this one

from corepipe.models import hub
from tests.fleet.machines import Machines
from tests.servers import Served, served, until

PORT = 6413
VOCABULARY = range(1_000, 30_000)
"""Token ids that no model uses for special tokens."""
Pair = tuple[float, float]
WORKS = {
    "1 stream": Work(32, 128, 1, 3),
    "8 streams": Work(32, 128, 8, 16),
    "first token, ms": Work(32, 1, 1, 20, first_token=True),
}


@dataclass(frozen=True)
class Side:
    """A server, and the processes that answer for it."""

    server: Served
    model: str
    processes: Callable[[], Iterable[psutil.Process]]

    def run(self, work: Work) -> tuple[float, float]:
        """Returns the result of `speed`, and milliseconds of processor time per token."""
        before = self._seconds()
        found = asyncio.run(speed(self.server.url, self.model, work, VOCABULARY))
        return found, 1e3 * (self._seconds() - before) / (work.requests * work.output)

    def _seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(time.user + time.system for time in times)


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def in_turn(one: Callable[[], Pair], other: Callable[[], Pair], rounds: int) -> list[tuple[Pair, Pair]]:
    """Returns the results of both in each round; every second round begins with the other one."""
    found = []
    for number in range(rounds):
        first, second = (one, other) if number % 2 == 0 else (other, one)
        pair = (first(), second())
        found.append(pair if number % 2 == 0 else pair[::-1])
    return found


def compared(rounds: list[tuple[float, float]], *, apart: bool = False) -> str:
    """Returns both medians; and of the rounds the median ratio (`apart`: difference), and its quartiles."""
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    costs = [other - one if apart else other / one for one, other in rounds]
    sign, digits = ("+", 1) if apart else ("", 2)
    quarters = statistics.quantiles(costs, n=4, method="inclusive")
    low, middle, high = (f"{cost:{sign}.{digits}f}" for cost in quarters)
    return f"{ours:>9.1f} {theirs:>9.1f} {middle:>8} ({low} to {high})"


def report(name: str, work: Work, rounds: list[tuple[Pair, Pair]]) -> None:
    rates = [(one[0], other[0]) for one, other in rounds]
    if work.first_token:
        print(f"{name:>24} {compared([(1e3 / one, 1e3 / other) for one, other in rates], apart=True)}")
        return
    print(f"{name + ', tokens/s':>24} {compared(rates)}")
    print(
        f"{'processor ms a token':>24} {compared([(one[1], other[1]) for one, other in rounds])}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        machines = Machines(PORT)
        stack.callback(machines.close)
        machines.head()
        machines.join("a")
        local = stack.enter_context(served(args.model))
        fleet = stack.enter_context(served(args.model, "--fleet", machines.address, "--replicas", 1))
        assert until(lambda: fleet.get("/health").status_code == 200)
        model = local.get("/v1/models").json()["data"][0]["id"]
        beside = Side(local, model, lambda: tree(psutil.Process(local.process.pid)))

        def answering() -> list[psutil.Process]:
            host = machines.one("a", "HostActor")
            return [*tree(psutil.Process(fleet.process.pid)), *tree(host)]

        away = Side(fleet, model, answering)
        print(f"{'':>24} {'local':>9} {'fleet':>9}   medians of {args.rounds}, in turn")
        for name, work in WORKS.items():
            sides = (partial(side.run, work) for side in (beside, away))
            report(name, work, in_turn(*sides, args.rounds))
        print({kind: f"{size:.0f} MB" for kind, size in machines.memory("a").items()})


if __name__ == "__main__":
    main()
