"""What the way over a fleet costs: an engine behind a host of Ray beside one of the server's own, in turn.

    PYTHONPATH=. python benchmarks/fleet_hop.py [MODEL] [--rounds 9]

Both on this machine, over loopback; it needs corepipe[ray].  Tokens a second at 1 and 8 streams: the fleet's
over the local one's, and milliseconds that the first token of a short prompt comes later.  Then the memory
(PSS) that a machine of the fleet takes.

For machines that have other work, too: of each round one ratio is taken, of two runs that follow each other,
now the one and now the other first; the middle of these is told, with the quarter below and above.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial

from side_by_side import Server, Work, speed  # the script beside this one

from corepipe.models import hub
from corepipe.planning.bench.prompts import all_words
from tests.fleet.machines import Machines
from tests.servers import Served, served, until

PORT = 6413
WORKS = {
    "1 stream, tokens/s": Work(32, 128, 1, 3),
    "8 streams, tokens/s": Work(32, 128, 8, 16),
    "first token": Work(32, 1, 1, 20, first_token=True),
}


def rate(server: Served, model: str, work: Work, vocabulary: list[str]) -> float:
    return asyncio.run(speed(Server(server.url, model), work, vocabulary, time.time_ns()))


def in_turn(one: Callable[[], float], other: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """What both give in each round; every second round begins with the other one."""
    found = []
    for number in range(rounds):
        first, second = (one, other) if number % 2 == 0 else (other, one)
        pair = (first(), second())
        found.append(pair if number % 2 == 0 else pair[::-1])
    return found


def told(work: Work, rounds: list[tuple[float, float]]) -> str:
    """Both medians, and what the way costs: of the rounds the middle one, and the quarters around it."""
    if work.first_token:
        rounds = [(1e3 / one, 1e3 / other) for one, other in rounds]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    costs = [other - one if work.first_token else other / one for one, other in rounds]
    low, middle, high = statistics.quantiles(costs, n=4, method="inclusive")
    form = "+.1f" if work.first_token else ".2f"
    unit = " ms" if work.first_token else ""
    return f"{ours:>9.1f} {theirs:>9.1f} {middle:>8{form}}{unit} ({low:{form}} to {high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    vocabulary = list(all_words())
    with contextlib.ExitStack() as stack:
        machines = Machines(PORT)
        stack.callback(machines.close)
        machines.head()
        machines.join("a")
        local = stack.enter_context(served(args.model))
        fleet = stack.enter_context(served(args.model, "--fleet", machines.address, "--replicas", 1))
        assert until(lambda: fleet.get("/health").status_code == 200)
        model = local.get("/v1/models").json()["data"][0]["id"]
        print(f"{'':>20} {'local':>9} {'fleet':>9}   medians of {args.rounds}, in turn")
        for name, work in WORKS.items():
            rates = (partial(rate, server, model, work, vocabulary) for server in (local, fleet))
            print(f"{name:>20} {told(work, in_turn(*rates, args.rounds))}", flush=True)
        print({kind: f"{size:.0f} MB" for kind, size in machines.memory("a").items()})


if __name__ == "__main__":
    main()
