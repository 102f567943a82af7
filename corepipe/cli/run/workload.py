"""From the flags of a workload to the workload, alike for a simulation and for a load test."""

from __future__ import annotations

from collections.abc import Sequence

from corepipe.cli.flags.options import Given
from corepipe.cli.flags.workload import USERS
from corepipe.cli.run.software import GraphKind
from corepipe.errors import UserError
from corepipe.neuron.graph import Graph
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.slo import NO_SLO, Slo
from corepipe.workload.traces import trace_workload
from corepipe.workload.workload import PrefixTree, Synthetic, Workload


def asked_slo(given: Given) -> Slo:
    """Returns the objectives of `--slo`.  Raises UserError."""
    return NO_SLO if given["slo"] is None else Slo.parse(given["slo"])


def asked_workload(given: Given, users: str, requests: int) -> Workload:
    """Returns the workload that the flags describe.  users: the parameter of the users of a closed loop.

    requests: their number, where nothing else limits it.  Raises UserError for flags that contradict each
    other.
    """
    if given["trace"] is not None:
        return _traced(given, users)
    if given["requests"] is None and given["duration"] is None:
        given = given.replaced(requests=requests)
    if given["rate"] is None and given[users] is None:
        given = given.replaced(**{users: USERS})
    return synthetic(given, users).workload()


def synthetic(given: Given, users: str) -> Synthetic:
    """Makes a synthetic workload.  Raises UserError for flags that contradict each other."""
    _check_loop(given, users)
    rate, duration = given["rate"], given["duration"]
    arrivals = rate and Arrivals.parse(rate, given["arrival"].value, given["burstiness"], duration)
    return Synthetic(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        given["requests"],
        duration,
        arrivals or None,
        given[users],
        given["turns"],
        given["think_time"],
        PrefixTree.parse(given["prefix_tree"]) if given["prefix_tree"] else PrefixTree(),
        given["seed"],
    )


def _check_loop(given: Given, users_name: str) -> None:
    """Raises UserError for flags of an open loop and of a closed one, and for one that does nothing alone."""
    rate, users = given["rate"], f"--{users_name}"
    if rate is not None and given[users_name] is not None:
        raise UserError(f"--rate is an open loop and {users} a closed one: give one of them", "rate")
    why = "in a closed loop answers set the times; add --rate"
    if rate is None and given.changed("arrival"):
        raise UserError(f"--arrival {given['arrival'].value}: {why}", "arrival")
    if rate is None:
        given.refuse(("burstiness",), f"has no effect: {why}")
    if rate is not None and given["think_time"] and given["turns"] == 1:
        raise UserError(
            f"--think-time: in an open loop it is between --turns; add them, or use {users}", "think_time"
        )
    given.refuse(("trace_speed",), "is of a trace; add --trace")


OF_NO_TRACE = (
    "rate", "arrival", "burstiness", "think_time", "input_len", "output_len", "prefix_tree", "turns",
)  # fmt: skip
"""Flags that a trace leaves nothing to do."""


def _traced(given: Given, users_name: str) -> Workload:
    """Reads a workload from a file.  Raises UserError for flags that have no effect with it."""
    why = "has no effect with --trace, which has its own requests and times; leave it out"
    given.refuse((*OF_NO_TRACE, users_name), why)
    schema = given["trace_format"]
    return trace_workload(
        given["trace"], schema and schema.value, given["requests"], given["duration"], given["trace_speed"]
    )


def input_length(given: Given, graph: Graph, unused: Sequence[str]) -> str:
    """Returns `--input-len` for a model that runs once over its input; an image has one length.

    Where the flag is left out, the default is cut to what the model takes.

    unused: flags of what generates.  Raises UserError for one of them, and for a length of images.
    """
    given.refuse(unused, f"is not for {graph.name}: it generates no tokens")
    if GraphKind.of(graph) is GraphKind.IMAGES:
        given.refuse(("input_len",), f"is not for {graph.name}: images are all of one size")
        return str(graph.max_positions)
    length: str = given["input_len"]
    return length if given.changed("input_len") else str(min(int(length), graph.max_positions))
