"""The placement of a model on emulated cores, as a table and as a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console

from corepipe.cli.output.tables import USELESS, Figures, size

CORE_COLUMNS = (">core", ">stage", ">rank", ">layers", ">heads", ">kv heads", ">weights", ">KV a token")


DEGREES = ("pipeline", "tensor", "data", "expert")


def print_placement(console: Console, placement: Mapping[str, Any]) -> None:
    """Prints the deployment and a table of a replica's cores; neighbours with equal shares are one row."""
    console.print(deployment_line(placement))
    if why := placement.get("hypothetical"):
        console.print(f"hypothetical: {why}", style="yellow")
    console.print(placement["reason"], style="dim")
    if placement.get("intervals"):
        console.print(_sure(placement["intervals"]), style="dim")
    for whose in _whose(placement):
        console.print(whose)
    if placement["time_scale"] != 1.0:
        console.print(f"one second on the device clock takes {placement['time_scale']:g} s (--time-scale)")
    for assumed in _assumed(placement):
        console.print(assumed, style="yellow")
    if draft := placement.get("draft_model"):
        where = f"on core {span(draft['cores'])} of each replica"
        console.print(f"draft model {draft['model']} {where}")
    if kept := placement.get("kv_cache_dtype"):
        on_device = placement["kv_cache_dtype_on_device"]
        console.print(
            f"the host keeps keys and values as {kept} (emulation only: {on_device} on the device), "
            f"{placement['kv_cache_bytes_per_token'] / 1e3:.2f} kB a token"
        )
    for limit in placement["host_limits"]:
        console.print(limit, style="yellow")
    cores = Figures(*CORE_COLUMNS)
    for (stage, *held), run in groupby(placement["cores"], key=_held):
        alike = list(run)
        numbers, ranks = (span([core[name] for core in alike]) for name in ("core", "rank"))
        cores.add_row(numbers, stage, ranks, *held)
    console.print(cores)


def deployment_line(placement: Mapping[str, Any]) -> str:
    """Returns a line with the model, its format, the instance and the degrees."""
    timed = placement["timing_model"] or placement["model"]
    return (
        f"{timed}, {placement['format']} ({placement['format_on_device']} on the device), "
        f"on {placement['instance']} (emulated, software profile {placement['runtime_profile']}): "
        f"{', '.join(degrees_of(placement))}{_part(placement)}"
    )


def memory_line(placement: Mapping[str, Any]) -> str:
    """Returns a line on the memory of the fullest core."""
    fullest = max((core["memory_bytes"] for core in placement["cores"]), key=lambda held: sum(held.values()))
    parts = (f"{size(count)} of {name.replace('kv_', 'KV ')}" for name, count in fullest.items() if count)
    return f"memory of the fullest core (emulated): {', '.join(parts)}"


def to_know(placement: Mapping[str, Any]) -> Iterator[str]:
    """Yields what matters to a person who does not read the table: surprises, and what to act on."""
    if why := placement.get("hypothetical"):
        yield f"hypothetical: {why.partition(':')[0]}"
    yield from _whose(placement)
    yield from _assumed(placement)
    yield from placement["host_limits"]


def _whose(placement: Mapping[str, Any]) -> Iterator[str]:
    if timed := placement["timing_model"]:
        yield f"times, memory and limits are those of {timed}; {placement['model']} computes the tokens"


def _assumed(placement: Mapping[str, Any]) -> Iterator[str]:
    if rates := placement.get("assumed_acceptance_rates"):
        told = ", ".join(f"{rate:.3g}" for rate in rates)
        yield f"assumed acceptance rates of drafted tokens, by position: {told}"


def degrees_of(placement: Mapping[str, Any]) -> Iterator[str]:
    """Yields the degrees in /v1/placement, or in a report, in words; with that of experts, where there are
    any."""
    return (f"{name} {placement[name]}" for name in DEGREES if name in placement)


def _part(placement: Mapping[str, Any]) -> str:
    """Returns which cores of the instance the model has, where other models have others."""
    numbers = placement.get("neuroncore_ids")
    return f", on NeuronCores {span(numbers)}" if numbers else ""


def _sure(intervals: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a line on how far measurements may be from predictions."""
    parts = [f"{figure} {_between(known)}" for figure, known in intervals.items()]
    return f"intervals of a measurement, as multiples of its prediction: {', '.join(parts)}"


def _between(known: Mapping[str, float]) -> str:
    """Returns the factors of an interval that is narrow enough to be useful; of a wider one, why it is
    wide."""
    low, high = known["time_factor_low"], known["time_factor_high"]
    if high > USELESS or low < 1 / USELESS:
        return f"not known (no similar step or model was measured; distance {known['steps_away']:.2g})"
    return f"{low:.2f} to {high:.2f}"


def _held(core: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of a core beside its number and rank."""
    return (
        str(core["stage"]),
        span(core["layers"]),
        *(str(core[name]) for name in ("heads", "kv_heads")),
        size(sum(core["weight_bytes"].values())),
        f"{core['kv_bytes_per_token'] / 1e3:.2f} kB",
    )


def span(numbers: Sequence[int]) -> str:
    """The first and the last of consecutive numbers, as `0-14`."""
    if not numbers:
        return "-"
    return f"{numbers[0]}-{numbers[-1]}" if numbers[0] != numbers[-1] else str(numbers[0])
