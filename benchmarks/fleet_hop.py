"""What the way over a fleet costs: an engine behind a host of Ray beside one of the server's own, in turn.

    PYTHONPATH=. python benchmarks/fleet_hop.py [MODEL] [--rounds 5]

Both on this machine, over loopback; it needs corepipe[ray].  Tokens a second at 1 and 8 streams: the fleet's
over the local one's, and milliseconds that the first token of a short prompt comes later.  Then the memory
(PSS) that a machine of the fleet takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time

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


def told(work: Work, local: list[float], fleet: list[float]) -> str:
    """Both medians, and what the way costs: of the rounds, the middle one."""
    if work.first_token:
        firsts = [(1e3 / one, 1e3 / other) for one, other in zip(local, fleet, strict=True)]
        ours, theirs = (statistics.median(column) for column in zip(*firsts, strict=True))
        later = statistics.median(other - one for one, other in firsts)
        return f"{ours:>9.1f} {theirs:>9.1f} {later:>+7.1f} ms"
    ratio = statistics.median(other / one for one, other in zip(local, fleet, strict=True))
    return f"{statistics.median(local):>9.1f} {statistics.median(fleet):>9.1f} {ratio:>7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=5)
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
            rounds = [
                (rate(local, model, work, vocabulary), rate(fleet, model, work, vocabulary))
                for _ in range(args.rounds)
            ]
            print(f"{name:>20} {told(work, *map(list, zip(*rounds, strict=True)))}", flush=True)
        print({kind: f"{size:.0f} MB" for kind, size in machines.memory("a").items()})


if __name__ == "__main__":
    main()
