"""From the flags of a workload to the workload, alike for a simulation and for a load test."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from corepipe.cli.flags.workload import INPUT_LEN, OUTPUT_LEN, Arrival
from corepipe.errors import UserError
from corepipe.workload.arrivals import Arrivals
from corepipe.workload.lengths import Lengths
from corepipe.workload.traces import trace_workload
from corepipe.workload.workload import PrefixTree, Synthetic, Workload


def synthetic(
    given: Mapping[str, Any], users: int | None, requests: int | None, users_name: str
) -> Synthetic:
    """Makes a synthetic workload.  users_name: the parameter that `users` comes from.

    Raises UserError for flags that contradict each other.
    """
    _check_loop(given, users_name)
    rate, duration = given["rate"], given["duration"]
    arrivals = rate and Arrivals.parse(rate, given["arrival"].value, given["burstiness"], duration)
    return Synthetic(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        requests,
        duration,
        arrivals or None,
        users,
        given["turns"],
        given["think_time"],
        PrefixTree.parse(given["prefix_tree"]) if given["prefix_tree"] else PrefixTree(),
        given["seed"],
    )


def _check_loop(given: Mapping[str, Any], users_name: str) -> None:
    """Raises UserError for flags of an open loop and of a closed one, and for one that does nothing alone."""
    rate, users = given["rate"], f"--{users_name}"
    if rate is not None and given[users_name] is not None:
        raise UserError(f"--rate is an open loop and {users} a closed one: give one of them", "rate")
    if rate is None and given["arrival"] is not Arrival.POISSON:
        arrival = given["arrival"].value
        raise UserError(f"--arrival {arrival}: in a closed loop answers set the times; add --rate", "arrival")
    if rate is None and given["burstiness"] != 1.0:
        raise UserError("--burstiness: in a closed loop answers set the times; add --rate", "burstiness")
    if rate is not None and given["think_time"] and given["turns"] == 1:
        raise UserError(
            f"--think-time: in an open loop it is between --turns; add them, or use {users}", "think_time"
        )
    if given["trace_speed"] != 1.0:
        raise UserError("--trace-speed is of a trace; add --trace", "trace_speed")


NOT_OF_A_TRACE: Mapping[str, object] = MappingProxyType(
    {
        "rate": None,
        "arrival": Arrival.POISSON,
        "burstiness": 1.0,
        "think_time": 0.0,
        "input_len": INPUT_LEN,
        "output_len": OUTPUT_LEN,
        "prefix_tree": None,
        "turns": 1,
    }
)
"""Flags that a trace leaves nothing to do, and what they are where they are not given."""


def traced(given: Mapping[str, Any], users_name: str) -> Workload:
    """Reads a workload from a file.  Raises UserError for flags that have no effect with it."""
    for name, absent in {**NOT_OF_A_TRACE, users_name: None}.items():
        if given[name] != absent:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{flag}: a trace has its own requests and times; leave out {flag} or --trace", name
            )
    schema = given["trace_format"]
    return trace_workload(
        given["trace"], schema and schema.value, given["requests"], given["duration"], given["trace_speed"]
    )
