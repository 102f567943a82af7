"""Measures how long `corepipe serve` takes until /health answers 200, and how long `corepipe --help` takes.

    python benchmarks/start.py [MODEL] [--against CLONE] [--rounds 9] [--serve 'FLAGS']

A start runs the `corepipe` of the environment of this interpreter, as users call it, and asks /health until
it answers 200.  CLONE is another checkout with its .venv (`make setup`): its `corepipe` takes turns with this
one, and the ratio of its time to ours is told.  The first start of each is not counted: it packs weights and
compiles modules.

Times are seconds, medians of the rounds with the smallest and the largest.  Processor time is user and system
time until /health answers: of the server, of its engine, and of its other processes, such as the one that
tries the chat template.  On a machine that does other work, read the processor times and the ratios.  /health
is asked every few milliseconds over a connection of its own; what the server computes for that is in its
processor time.  Compiled modules are kept, as they are for users, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import psutil
from turns import ends_all_at_sigterm

ASKED_EVERY = 0.005
"""Seconds between two requests for /health."""

ENGINE = "corepipe.engine.process"
"""A word of the command of an engine's process."""

Measured = Callable[[Path], tuple[float, ...]]


class Start(NamedTuple):
    """Seconds of a start: wall time, and processor time of the server, its engine and its other processes."""

    wall: float
    server: float
    engine: float
    others: float


class Help(NamedTuple):
    """Seconds of `corepipe --help`."""

    wall: float
    processor: float


def helped(corepipe: Path) -> Help:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([corepipe, "--help"], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Help(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def started(corepipe: Path, arguments: Sequence[str]) -> Start:
    """One start, from the command to the first 200.  Raises RuntimeError where the server ends instead."""
    port = free_port()
    command = [corepipe, "serve", *arguments, "--port", str(port)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not ready(port):
                if process.poll() is not None:
                    raise RuntimeError(f"{corepipe} ended before it was ready: {process.stderr.read()}")
                time.sleep(ASKED_EVERY)
            wall = time.perf_counter() - began
            return Start(wall, *processor_times(psutil.Process(process.pid)))
        finally:
            process.terminate()
            process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    return False


def processor_times(server: psutil.Process) -> tuple[float, float, float]:
    """Seconds of the server, of its engine, and of its other processes, those that have ended among them."""
    own = server.cpu_times()
    engine, others = 0.0, own.children_user + own.children_system
    for child in server.children(recursive=True):
        spent = child.cpu_times()
        if ENGINE in child.cmdline():
            engine += spent.user + spent.system
        else:
            others += spent.user + spent.system
    return own.user + own.system, engine, others


def take_turns(measure: Measured, commands: Sequence[Path], rounds: int) -> list[list[tuple[float, ...]]]:
    """Measures the commands in turn; returns the figures of each, round by round, without a first round."""
    for command in commands:
        measure(command)
    turns = [[measure(command) for command in commands] for _ in range(rounds)]
    return [list(column) for column in zip(*turns, strict=True)]


def show(what: str, names: Sequence[str], taken: Sequence[Sequence[tuple[float, ...]]]) -> None:
    """Prints a line for each kind of time, and its ratio where two commands took turns."""
    for at, name in enumerate(names):
        columns = [[one[at] for one in rounds] for rounds in taken]
        line = f"{what + ', ' + name:<36}" + "".join(f"  {spread(column, '.2f')}" for column in columns)
        if len(columns) == 2:
            ours, others = columns
            ratios = [other / our for our, other in zip(ours, others, strict=True) if our]
            line += f"  {spread(ratios, '.2f')} times as long"
        print(line, flush=True)


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="default: the default model")
    parser.add_argument("--against", type=Path, metavar="CLONE", help="another checkout, with its .venv")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", default="", metavar="FLAGS", help="further flags of corepipe serve")
    args = parser.parse_args()
    ends_all_at_sigterm()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = [Path(sys.executable).with_name("corepipe")]
    if args.against is not None:
        commands.append(args.against / ".venv" / "bin" / "corepipe")
    print(f"medians of {args.rounds} rounds, seconds: this one" + (", the other" if args.against else ""))
    show("corepipe --help", Help._fields, take_turns(helped, commands, args.rounds))
    arguments = [*([args.model] if args.model else []), *shlex.split(args.serve)]
    measured = take_turns(lambda command: started(command, arguments), commands, args.rounds)
    show("corepipe serve", Start._fields, measured)


if __name__ == "__main__":
    main()
