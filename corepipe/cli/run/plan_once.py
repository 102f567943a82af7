"""The work of `corepipe plan` for models that run once over their input: encoders, and models of images."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import typer

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import (
    errors,
    print_json,
    progress_bar,
    results,
    seconds,
    sigterm_as_interrupt,
)
from corepipe.cli.output.tables import Figures, between
from corepipe.cli.run.software import ASSUMED, SIMULATE, GraphKind
from corepipe.cli.run.workload import input_length
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips import catalog, profiles
from corepipe.neuron.chips.catalog import INSTANCES
from corepipe.neuron.formats import TIMED_FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.uncertainty import LEVEL
from corepipe.planning.planner.commands import serve_command, simulate_once_command, wrapped
from corepipe.planning.planner.prices import PriceList, list_prices, read_prices
from corepipe.planning.planner.search import INTERRUPTED as INTERRUPTED_BY_USER
from corepipe.planning.planner.search_result import SearchStopped
from corepipe.planning.planner.single_pass import (
    REQUESTS,
    PricedInstance,
    SinglePassDemand,
    SinglePassOption,
    SinglePassResult,
    offers,
    search,
    tightened,
)
from corepipe.signals import INTERRUPTED
from corepipe.workload.lengths import Lengths

SCHEMA = "corepipe.plan-once/1"

UNMET = 3
"""Exit code where nothing meets the objective."""

UNUSED = (
    "tpot", "output_len", "speculative_config", "emit", "confidence", "next_measurement", "max_error",
)  # fmt: skip
"""Flags of a plan for what generates."""

FORMATS = ("bf16",)
"""Number formats that are tried without --dtype."""


def run(given: Given, model: Architecture, graph: Graph, rate: float) -> None:
    """Plans with these flags and prints the result; graph: of the model, for as many positions as are asked
    for.  Raises UserError for what cannot be planned, Exit where nothing meets the objective."""
    demand = _demand(given, graph, rate)
    offered = list(_offers(given, graph))
    limit = seconds("--time-limit", given["time_limit"])
    deadline = None if limit is None else monotonic() + limit
    with progress_bar(errors()) as bar, sigterm_as_interrupt():

        def watch(done: float) -> None:
            bar("searching for the cheapest", done)
            if deadline is not None and monotonic() >= deadline:
                raise SearchStopped(f"--time-limit {limit:g}s")

        found = search(model, tightened(demand, given["margin"] / 100), offered, graph.max_positions, watch)
    if given["json"]:
        print_json(_document(found, demand, given))
    else:
        _print(found, demand, given, graph)
    if found.cut_short == INTERRUPTED_BY_USER:
        raise typer.Exit(INTERRUPTED)
    if not found.options:
        raise typer.Exit(UNMET)


def _demand(given: Given, graph: Graph, rate: float) -> SinglePassDemand:
    """Raises UserError for flags of what generates, and for inputs that are too long."""
    spec = input_length(given, graph, UNUSED)
    demand = SinglePassDemand(
        rate, Lengths.parse(spec, "input-len"), seconds("--ttft", given["ttft"]), given["percentile"],
        given["seed"], given["requests"] or REQUESTS,
    )  # fmt: skip
    if max(demand.lengths) > graph.max_positions:
        message = f"--input-len {spec}: {graph.name} takes {graph.max_positions} tokens here"
        raise UserError(message, "input_len")
    return demand


def _offers(given: Mapping[str, Any], graph: Graph) -> Iterator[PricedInstance]:
    named = {catalog.instance(name).name for name in given["instance"] or []}
    chosen = [instance for instance in INSTANCES if not named or instance.name in named]
    formats = [TIMED_FORMATS[fmt.value] for fmt in given["dtype"] or []] or [
        TIMED_FORMATS[name] for name in FORMATS
    ]
    stacks = given["profile"] or [ASSUMED[SIMULATE][GraphKind.of(graph)]]
    prices, purchase, region = _prices(given), given["purchase"], given["region"]
    prices.check_region(purchase, region)
    found = {instance.name: prices.get(instance.name, purchase, region) for instance in chosen}
    known = {name: price.per_hour for name, price in found.items() if price is not None}
    if not known:
        prices.require(chosen[0].name, purchase, region)
    return offers(chosen, known, formats, {stack: profiles.profile(stack) for stack in stacks})


def _prices(given: Mapping[str, Any]) -> PriceList:
    return read_prices(given["prices"]) if given["prices"] else list_prices()


def _million(option: SinglePassOption, demand: SinglePassDemand) -> float:
    """Dollars for a million requests."""
    return option.price / 3600 / demand.rate * 1e6


def _serve(option: SinglePassOption, given: Mapping[str, Any]) -> list[str] | None:
    if not Path(given["model"]).is_dir():
        return None
    return serve_command(given["model"], option.deployment, option.offer.stack, weights=True)


def _simulate(
    option: SinglePassOption, demand: SinglePassDemand, given: Mapping[str, Any], *, images: bool
) -> list[str]:
    load: dict[str, object] = {
        "--rate": repr(demand.rate / option.deployment.instances),
        "--requests": demand.requests,
        "--seed": demand.seed,
        **({"--max-model-len": None} if images else {"--input-len": demand.input_len.spec}),
        **({} if demand.seconds is None else {"--slo": f"e2e:{demand.seconds * 1e3:.12g}ms"}),
    }
    return simulate_once_command(given["model"], option.deployment, option.offer.stack, load)


def _document(
    found: SinglePassResult, demand: SinglePassDemand, given: Mapping[str, Any]
) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "emulated": True,
        "model": given["model"],
        "objective": {"e2e_ms": demand.seconds and demand.seconds * 1e3, "percentile": demand.percentile},
        "workload": {"rate": demand.rate, "input_len": demand.input_len.spec, "seed": demand.seed},
        "choice": _option(found.options[0], demand, given) if found.options else None,
        "options": [_option(option, demand, given) for option in found.options],
        "failed": [{"deployment": str(shape), "reason": why} for shape, why in found.failed.items()],
        "cut_short": found.cut_short,
        "simulations": found.simulations,
    }


def _option(
    option: SinglePassOption, demand: SinglePassDemand, given: Mapping[str, Any]
) -> dict[str, object]:
    shape, limits = option.deployment.candidate.shape, option.deployment.candidate.limits
    images = GraphKind.of(option.report.device.graph) is GraphKind.IMAGES
    serve = _serve(option, given)
    return {
        "instances": option.deployment.instances,
        "instance": shape.instance,
        **shape.placement.degrees,
        "dtype": shape.format.name,
        "profile": shape.profile.name,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "price_per_hour": option.price,
        "dollars_per_million_requests": _million(option, demand),
        "predicted": {"e2e_ms": option.seconds * 1e3},
        "commands": {
            "serve": serve and shlex.join(serve),
            "simulate": shlex.join(_simulate(option, demand, given, images=images)),
        },
    }


def _print(found: SinglePassResult, demand: SinglePassDemand, given: Mapping[str, Any], graph: Graph) -> None:
    console = results()
    if found.cut_short:
        console.print(f"The search was cut short ({found.cut_short}): this is the best so far.", style="bold")
    elif not found.options:
        console.print("Nothing meets the objective.", style="bold")
    for line in _summary(found.options[0], demand, graph) if found.options else []:
        console.print(line, style="bold")
    console.print()
    for shape, why in found.failed.items():
        console.print(f"not chosen: {shape}: {why}")
    if not found.options:
        return
    best = found.options[0]
    bounds = best.report.intervals.latencies("e2e", best.report.e2e, 1e3)
    if bounds is not None:
        told = f"end to end p50 {between(bounds['p50'])}, p99 {between(bounds['p99'])} ms"
        console.print(f"{LEVEL:.0%} interval: {told}")
    console.print(_table(found, demand))
    if (serve := _serve(best, given)) is not None:
        console.print(f"to serve it emulated, on each instance:\n{wrapped(serve)}")
    again = _simulate(best, demand, given, images=GraphKind.of(graph) is GraphKind.IMAGES)
    console.print(f"to simulate one instance again:\n{wrapped(again)}")


def _summary(best: SinglePassOption, demand: SinglePassDemand, graph: Graph) -> Iterator[str]:
    """The choice in three lines: what to rent for how much, how quick it is, and what runs it."""
    yield (
        f"{best.deployment} at {best.price:.4g} $/h ({best.offer.instance.standing}), "
        f"{_million(best, demand):.3g} $ for a million requests"
    )
    limit, aimless = "", "; without an objective (--ttft) it is the cheapest whose queue does not grow"
    if demand.seconds is not None:
        limit, aimless = f" of {demand.seconds * 1e3:g}", ""
    inputs = "images" if GraphKind.of(graph) is GraphKind.IMAGES else f"requests of {_lengths(demand)} tokens"
    told = f"{demand.rate:g} {inputs} a second: {best.seconds * 1e3:.3g} ms"
    yield f"{told}{limit} at p{demand.percentile:g}{aimless}"
    yield "vLLM on Neuron does not run it; torch-neuronx (inf1: torch-neuron) traces its graphs, one a core"


def _lengths(demand: SinglePassDemand) -> str:
    least, most = min(demand.lengths), max(demand.lengths)
    return f"{least}" if least == most else f"{least} to {most}"


def _table(found: SinglePassResult, demand: SinglePassDemand) -> Figures:
    title = "deployments that meet the objective (emulated)"
    headings = (">$/h", ">$/M requests", ">e2e ms", "deployment")
    table = Figures(*headings, title=title, title_justify="left", pad_edge=False)
    for option in found.options:
        figures = (option.price, _million(option, demand), option.seconds * 1e3)
        table.add_row(*(f"{figure:.4g}" for figure in figures), str(option.deployment))
    return table
