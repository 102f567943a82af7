"""The work of `corepipe plan` for models that run once over their input: encoders, and models of images."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import typer

from corepipe.cli.flags.options import Given
from corepipe.cli.output.common import print_json, results
from corepipe.cli.output.tables import Figures, between
from corepipe.cli.run.plans.given import asked_demand, asked_formats, asked_instances, asked_market, searching
from corepipe.cli.run.software import ASSUMED, SIMULATE, GraphKind
from corepipe.cli.run.workload import input_length
from corepipe.errors import UserError
from corepipe.models.registry import Architecture
from corepipe.neuron.chips import profiles
from corepipe.neuron.formats import TIMED_FORMATS
from corepipe.neuron.graph import Graph
from corepipe.neuron.timing.uncertainty import Figure
from corepipe.planning.planner.commands import serve_command, simulate_once_command, wrapped
from corepipe.planning.planner.demand import LEAST_REQUESTS, Demand
from corepipe.planning.planner.search import INTERRUPTED as INTERRUPTED_BY_USER
from corepipe.planning.planner.single_pass import (
    PricedShape,
    SinglePassOption,
    SinglePassResult,
    offers,
    search,
)
from corepipe.signals import INTERRUPTED

SCHEMA = "corepipe.plan-once/1"

UNMET = 3
"""Exit code where nothing meets the objective."""

UNUSED = (
    "tpot", "output_len", "speculative_config", "emit", "confidence", "next_measurement", "max_error",
)  # fmt: skip
"""Flags of a plan for what generates."""

FORMAT = "bf16"
"""The number format that is tried without --dtype."""


def run(given: Given, model: Architecture, graph: Graph) -> None:
    """Plans with these flags and prints the result; graph: of the model, for as many positions as are asked
    for.  Raises UserError for what cannot be planned, Exit where nothing meets the objective."""
    given.refuse(("kernel",), "is not for plans of models that generate nothing; simulate takes it")
    demand = _demand(given, graph)
    offered = list(_offers(given, graph))
    with searching(given) as report:
        what = "searching for the cheapest"
        found = search(model, demand.tightened, offered, graph.max_positions, partial(report, what))
    if given["json"]:
        print_json(_document(found, demand, given))
    else:
        _print(found, demand, given, graph)
    if found.cut_short == INTERRUPTED_BY_USER:
        raise typer.Exit(INTERRUPTED)
    if not found.options:
        raise typer.Exit(UNMET)


def _demand(given: Given, graph: Graph) -> Demand:
    """Raises UserError for flags of what generates, and for inputs that are too long."""
    spec = input_length(given, graph, UNUSED)
    requests = given["requests"] or LEAST_REQUESTS
    demand = asked_demand(given.replaced(input_len=spec, output_len="1", requests=requests))
    if demand.sizes.prompts.max() > graph.max_positions:
        message = f"--input-len {spec}: {graph.name} takes {graph.max_positions} tokens here"
        raise UserError(message, "input_len")
    return demand


def _offers(given: Given, graph: Graph) -> Iterator[PricedShape]:
    instances, formats = asked_instances(given), asked_formats(given) or (TIMED_FORMATS[FORMAT],)
    stacks = given["profile"] or [ASSUMED[SIMULATE][GraphKind.of(graph)]]
    software = {stack: profiles.profile(stack) for stack in stacks}
    return offers(instances, asked_market(given).known(instances), formats, software)


def _million(option: SinglePassOption, demand: Demand) -> float:
    """Dollars for a million requests."""
    return option.price / 3600 / demand.objectives.rate * 1e6


def _serve(option: SinglePassOption, given: Mapping[str, Any]) -> list[str] | None:
    if not Path(given["model"]).is_dir():
        return None
    return serve_command(given["model"], option.deployment, option.offer.stack, weights=True)


def _simulate(
    option: SinglePassOption, demand: Demand, given: Mapping[str, Any], *, images: bool
) -> list[str]:
    limit = demand.objectives.ttft
    load: dict[str, object] = {
        "--rate": repr(demand.objectives.rate / option.deployment.instances),
        "--requests": demand.requests,
        "--seed": demand.seed,
        **({"--max-model-len": None} if images else {"--input-len": demand.input_len.spec}),
        **({} if limit is None else {"--slo": f"e2e:{limit * 1e3:.12g}ms"}),
    }
    return simulate_once_command(given["model"], option.deployment, option.offer.stack, load)


def _document(found: SinglePassResult, demand: Demand, given: Mapping[str, Any]) -> dict[str, object]:
    asked, limit = demand.objectives, demand.objectives.ttft
    return {
        "schema": SCHEMA,
        "emulated": True,
        "model": given["model"],
        "objective": {"e2e_ms": limit and limit * 1e3, "percentile": asked.percentile},
        "workload": {"rate": asked.rate, "input_len": demand.input_len.spec, "seed": demand.seed},
        "choice": _option(found.options[0], demand, given) if found.options else None,
        "options": [_option(option, demand, given) for option in found.options],
        "failed": [{"deployment": str(shape), "reason": why} for shape, why in found.failed.items()],
        "cut_short": found.cut_short,
        "simulations": found.simulations,
    }


def _option(option: SinglePassOption, demand: Demand, given: Mapping[str, Any]) -> dict[str, object]:
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


def _print(found: SinglePassResult, demand: Demand, given: Mapping[str, Any], graph: Graph) -> None:
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
        console.print(f"interval: {told} ({best.report.intervals.of(Figure.BATCH).basis})")
    console.print(_table(found, demand))
    if (serve := _serve(best, given)) is not None:
        console.print(f"to serve it emulated, on each instance:\n{wrapped(serve)}")
    again = _simulate(best, demand, given, images=GraphKind.of(graph) is GraphKind.IMAGES)
    console.print(f"to simulate one instance again:\n{wrapped(again)}")


def _summary(best: SinglePassOption, demand: Demand, graph: Graph) -> Iterator[str]:
    """The choice in three lines: what to rent for how much, how quick it is, and what runs it."""
    yield (
        f"{best.deployment} at {best.price:.4g} $/h ({best.shape.device.standing}), "
        f"{_million(best, demand):.3g} $ for a million requests"
    )
    limit, aimless = "", "; without an objective (--ttft) it is the cheapest whose queue does not grow"
    asked = demand.objectives
    if asked.ttft is not None:
        limit, aimless = f" of {asked.ttft * 1e3:g}", ""
    inputs = "images" if GraphKind.of(graph) is GraphKind.IMAGES else f"requests of {_lengths(demand)} tokens"
    told = f"{asked.rate:g} {inputs} a second: {best.seconds * 1e3:.3g} ms"
    yield f"{told}{limit} at p{asked.percentile:g}{aimless}"
    yield "vLLM on Neuron does not run it; torch-neuronx (inf1: torch-neuron) traces its graphs, one a core"


def _lengths(demand: Demand) -> str:
    least, most = demand.sizes.prompts.min(), demand.sizes.prompts.max()
    return f"{least}" if least == most else f"{least} to {most}"


def _table(found: SinglePassResult, demand: Demand) -> Figures:
    title = "deployments that meet the objective (emulated)"
    headings = (">$/h", ">$/M requests", ">e2e ms", "deployment")
    table = Figures(*headings, title=title, title_justify="left", pad_edge=False)
    for option in found.options:
        figures = (option.price, _million(option, demand), option.seconds * 1e3)
        table.add_row(*(f"{figure:.4g}" for figure in figures), str(option.deployment))
    return table
