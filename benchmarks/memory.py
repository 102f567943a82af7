"""Memory and start time of a server: idle, and with streams that generate.

    python benchmarks/memory.py [MODEL] [--dtype int8] [--streams 32] [--starts 5]

Summed PSS of the server and its engine, in MB (a million bytes), after the start, at its most while so
many streams answer, and while as many more do, when the blocks of the former are kept for their prefixes;
and as a multiple of the bytes of the packed weights.  No other process may serve the model meanwhile:
shared memory counts for each by half.  And the seconds from the command to the first answer of /health that
it is ready, with weights packed and modules compiled, as from the second start on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from side_by_side import OURS, free_port, served_model  # the scripts beside this one
from turns import Contender, ends_all_at_sigterm
from works import Work, speed

from corepipe.models import hub, registry
from corepipe.neuron.formats import FORMATS
from corepipe.neuron.host.weights import packed_weights

MEGA = 1e6
WAIT_SECONDS, LOOK_SECONDS = 0.01, 0.25


@contextlib.contextmanager
def started(name: str, dtype: str) -> Iterator[tuple[Contender, str, float]]:
    """Starts a server; yields it with its address, and the seconds until it was ready."""
    port = free_port()
    words = OURS.format(python=sys.executable, model=shlex.quote(name), dtype=dtype).split("=", 1)[1]
    url, begun = f"http://127.0.0.1:{port}", time.perf_counter()
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = shlex.split(words.format(port=port))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=own) as child:
        server = Contender(name, psutil.Process(child.pid))
        try:
            while not ready(url):
                if child.poll() is not None:
                    raise SystemExit(f"the server ended with {child.returncode}")
                time.sleep(WAIT_SECONDS)
            yield server, url, time.perf_counter() - begun
        finally:
            server.end()


def known_of(name: str, dtype: str) -> tuple[float, range]:
    """Returns the MB of a model's packed weights, which are not mapped after this, and ids that are no
    special tokens."""
    model = registry.load(hub.resolve(name))
    graph = model.graph(FORMATS[dtype], 2048)
    packed = packed_weights(graph, model.checkpoint, hub.cache_dir() / "packed")
    return packed.path.stat().st_size / MEGA, range(graph.vocab_size // 10, graph.vocab_size * 9 // 10)


def ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/health") as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def pss(server: Contender) -> list[float]:
    """Returns the PSS of each of its processes, in MB, the largest first."""
    found = (process.memory_full_info().pss / MEGA for process in server.processes())
    return sorted(found, reverse=True)


async def most(server: Contender, url: str, work: Work, vocabulary: range) -> list[float]:
    """Returns the PSS of each process when their sum is the largest during a work."""
    name = served_model(server.name, url, server.process)
    load = asyncio.create_task(speed(url, name, work, vocabulary))
    found = pss(server)
    while not load.done():
        await asyncio.sleep(LOOK_SECONDS)
        found = max(found, pss(server), key=sum)
    await load
    return found


def main() -> None:
    ends_all_at_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=hub.DEFAULT_MODEL)
    parser.add_argument("--dtype", default="int8", choices=FORMATS)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--starts", type=int, default=5)
    args = parser.parse_args()
    weights, vocabulary = known_of(args.model, args.dtype)
    seconds = []
    for _ in range(args.starts + 1):
        with started(args.model, args.dtype) as (_, _, took):
            seconds.append(took)
    del seconds[0]
    with started(args.model, args.dtype) as (server, url, _):
        idle = pss(server)
        work = Work(prompt=128, output=64, streams=args.streams, requests=args.streams)
        busy, later = (asyncio.run(most(server, url, work, vocabulary)) for _ in range(2))
    print(
        f"ready after {statistics.median(seconds):.2f} s, median of {args.starts} (best {min(seconds):.2f})"
    )
    print(f"packed weights {weights:.0f} MB; PSS of the processes in MB:")
    for name, found in (("idle", idle), (f"{args.streams} streams", busy), ("as many more", later)):
        each = " + ".join(f"{one:.0f}" for one in found)
        print(f"{name:>12} {sum(found):.0f} ({each}), x {sum(found) / weights:.2f} of the weights")


if __name__ == "__main__":
    main()
