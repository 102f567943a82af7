"""What `corepipe plan` does: from the flags to an inquiry, from a plan to text, a document or a manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from corepipe.cli import options
from corepipe.cli.common import errors, print_json, progress_bar, seconds
from corepipe.cli.plan import Emit
from corepipe.cli.tables import Figures
from corepipe.errors import UserError
from corepipe.models import published
from corepipe.models.registry import architecture
from corepipe.neuron import catalog, profiles
from corepipe.neuron.catalog import INSTANCES
from corepipe.neuron.graph import FORMATS
from corepipe.neuron.profiles import RuntimeProfile
from corepipe.planning.lengths import Lengths
from corepipe.planning.planner import emit_vllm
from corepipe.planning.planner.bounds import Objectives
from corepipe.planning.planner.confidence import METRICS, shipped_validation
from corepipe.planning.planner.emit_helm import Served, helm_values
from corepipe.planning.planner.emit_vllm import vllm_manifests
from corepipe.planning.planner.evaluate import Demand
from corepipe.planning.planner.plan_report import document, million, percentile_note, reasons
from corepipe.planning.planner.planner import SPREAD, Inquiry, Market, Plan
from corepipe.planning.planner.planner import plan as make_plan
from corepipe.planning.planner.prices import list_prices, read_prices
from corepipe.planning.planner.remedies import Remedy, roomier
from corepipe.planning.planner.remedies import remedy as find_remedy
from corepipe.planning.planner.search import Option
from corepipe.planning.planner.space import Shape, Space

DEFAULT_PROFILE = "vllm-neuron"
PIPE_WIDTH = 200

UNMET = 3
"""Exit code where nothing meets the objectives."""


def run(given: Mapping[str, Any]) -> None:
    """Plans with these flags and prints the result.  Raises UserError for what cannot be planned, Exit where
    nothing meets the objectives."""
    emit, as_json = given["emit"], given["as_json"]
    if emit and as_json:
        raise UserError("--emit prints a file and --json a document: give one of them", "emit")
    inquiry = _inquiry(given)
    if emit is Emit.VLLM_NEURON:
        _check_any_runs(inquiry)
    with progress_bar(errors()) as report:
        found = make_plan(inquiry, report)
        remedy = None if found.best else find_remedy(found, report)
    if as_json:
        print_json(document(found, remedy))
    else:
        _print(errors() if emit else _console(), found, remedy)
    if emit and found.best:
        typer.echo(_emitted(found, found.best, given), nl=False)
    if found.best is None:
        raise typer.Exit(UNMET)


def _inquiry(given: Mapping[str, Any]) -> Inquiry:
    emit, prices, max_error = given["emit"], given["prices"], given["max_error"]
    stacks = given["profile"] or [DEFAULT_PROFILE]
    return Inquiry(
        architecture=architecture(given["model"]),
        demand=_demand(given),
        space=_space(given["instance"] or [], given["dtype"] or [], stacks, emit),
        market=Market(read_prices(prices) if prices else list_prices(), given["purchase"], given["region"]),
        validation=shipped_validation(),
        max_model_len=given["max_model_len"],
        max_error=None if max_error is None else max_error / 100,
        accepts=_accepted(emit),
        spread=1.0 if emit else SPREAD,
    )


def _demand(given: Mapping[str, Any]) -> Demand:
    return Demand(
        Lengths.parse(given["input_len"], "input-len"),
        Lengths.parse(given["output_len"], "output-len"),
        Objectives(
            seconds("--ttft", given["ttft"]),
            seconds("--tpot", given["tpot"]),
            given["percentile"],
            _rate(given["rate"]),
        ),
        given["requests"],
        given["seed"],
    )


def _space(instances: list[str], formats: list[options.Dtype], stacks: list[str], emit: Emit | None) -> Space:
    """What may be chosen; vLLM on Neuron computes whole prompts, one at a time."""
    named = {catalog.instance(name).name for name in instances}
    chosen = tuple(i for i in INSTANCES if not named or i.name in named)
    given = tuple(FORMATS[fmt.value] for fmt in dict.fromkeys(formats)) or None
    space = Space(chosen, given, tuple(profiles.profile(stack) for stack in dict.fromkeys(stacks)))
    return replace(space, batched_tokens=()) if emit is Emit.VLLM_NEURON else space


def _check_any_runs(inquiry: Inquiry) -> None:
    """Raises UserError where vLLM on Neuron runs nothing of what may be chosen."""
    graph = inquiry.architecture.graph(FORMATS["bf16"])
    shapes = list(inquiry.space.shapes(graph.heads.heads, graph.num_layers))
    if shapes and not any(map(emit_vllm.runs, shapes)):
        emit_vllm.check_runs(shapes[0])


def _accepted(emit: Emit | None) -> Callable[[Shape], bool]:
    """What can be written so: `corepipe serve`, which the chart runs, takes logical cores as they come."""
    match emit:
        case Emit.VLLM_NEURON:
            return emit_vllm.runs
        case Emit.HELM:
            return lambda shape: shape.lnc is None
        case _:
            return lambda _: True


def _rate(rate: float) -> float:
    if not 0 < rate < inf:
        raise UserError(f"--rate must be a number of requests a second above 0, not {rate}", "rate")
    return rate


def _console() -> Console:
    """Standard output; in a pipe, lines are as long as they need to be."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PIPE_WIDTH)


def _emitted(plan: Plan, best: Option, given: Mapping[str, Any]) -> str:
    model = given["model"]
    notes = [f"{plan.inquiry.architecture.name}: {_sentence(plan, best)}", *_doubts(plan, best)]
    if given["emit"] is Emit.VLLM_NEURON:
        return vllm_manifests(_repository(model, notes), best.deployment, notes)
    weights = Path(model).is_dir() or Path(model).suffix == ".gguf"
    stack = _stack(best.deployment.candidate.shape.profile, given["profile"] or [DEFAULT_PROFILE])
    return helm_values(Served(model, weights, stack, best.outcome.latency), best.deployment, notes)


def _repository(model: str, notes: list[str]) -> str:
    """What vLLM loads: a path or a repository as it was given; for a published name its repository, and where
    that is not known the name, with a note that says so."""
    if "/" in model or Path(model).exists():
        return model
    known = published.hub_id(published.resolve(model))
    if known is None:
        notes.append(f"put the model's directory or repository in the place of {model}")
    return known or model


def _stack(profile: RuntimeProfile, stacks: Sequence[str]) -> str:
    """What the user called it: a name, or the path of a file."""
    return next(stack for stack in stacks if profiles.profile(stack) == profile)


def _print(console: Console, plan: Plan, remedy: Remedy | None) -> None:
    found = plan.found
    if plan.best:
        console.print(f"[bold]{_sentence(plan, plan.best)}[/bold]")
        for doubt in _doubts(plan, plan.best):
            console.print(doubt)
        console.print(_options(plan, plan.front, "latency against cost (emulated)"))
        if plan.tied:
            console.print(_options(plan, plan.tied, "tied with the choice: within the validation error"))
    else:
        _print_unmet(console, plan, remedy)
    _print_failures(console, plan)
    console.print(
        f"[dim]{found.configurations} configurations, {found.simulations} simulated; "
        f"prices: {plan.inquiry.market.purchase}, {plan.inquiry.market.region}[/dim]"
    )


def _sentence(plan: Plan, option: Option) -> str:
    outcome = option.outcome
    return (
        f"{option.deployment} at {option.price:.4g} $/h (emulated): TTFT {_ms(outcome.ttft)} ms, "
        f"TPOT {_ms(outcome.tpot)} ms at p{plan.inquiry.demand.objectives.percentile:g}, "
        f"{million(plan, option):.3g} $ for a million output tokens"
    )


def _ms(seconds: float) -> str:
    """Milliseconds; a dash where there is nothing to time, as between the tokens of an answer of one."""
    milliseconds = seconds * 1e3
    if not seconds:
        return "-"
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _doubts(plan: Plan, option: Option) -> list[str]:
    """How sure the figures are, and where the price is from."""
    shape, known = option.deployment.candidate.shape, plan.inquiry.validation
    sure = {figure: known.of(figure, shape) for figure in METRICS}
    parts = ", ".join(f"{figure} {confidence}" for figure, confidence in sure.items())
    bases = "; ".join(dict.fromkeys(c.basis for c in sure.values() if c.error is not None))
    return [
        f"how sure: {parts}; {percentile_note(plan)}" + (f" ({bases})" if bases else ""),
        f"price: {plan.prices[shape.instance].source}",
    ]


def _options(plan: Plan, options: Sequence[Option], title: str) -> Figures:
    table = Figures("$/h", "$/M tokens", "TTFT ms", "TPOT ms", "e2e ms", "deployment", title=title)
    table.title_justify = "left"
    for option in options:
        outcome = option.outcome
        latencies = (outcome.ttft, outcome.tpot, outcome.latency)
        table.add_row(
            f"{option.price:.4g}",
            f"{million(plan, option):.3g}",
            *map(_ms, latencies),
            str(option.deployment),
        )
    return table


def _print_unmet(console: Console, plan: Plan, remedy: Remedy | None) -> None:
    console.print("[bold]Nothing meets the objectives.[/bold]")
    if plan.nearest is not None:
        console.print(f"nearest: {plan.nearest.shape}: {plan.nearest.failure.text}")
    roomy = roomier(plan)
    if roomy is not None:
        console.print(f"it would fit {roomy}{_unpriced(plan, roomy.instance)}")
    if remedy is not None:
        asked = remedy.objectives
        flags = {"--ttft": asked.ttft, "--tpot": asked.tpot}
        changed = " ".join(f"{flag} {value * 1e3:g}ms" for flag, value in flags.items() if value)
        console.print(f"{changed} would be met by {_sentence(plan, remedy.option)}")


def _unpriced(plan: Plan, instance: str) -> str:
    """What to say of an instance that cannot be bought as was asked; else nothing."""
    market = plan.inquiry.market
    try:
        market.prices.require(instance, market.purchase, market.region)
    except UserError as error:
        return f"; {error.message}"
    return ""


def _print_failures(console: Console, plan: Plan) -> None:
    table = Figures("instance", "fails by", "of", "nearest", title="what fails")
    table.title_justify = "left"
    for instance, reason, count, nearest in reasons(plan):
        table.add_row(instance, reason, str(count), nearest)
    if table.row_count:
        console.print(table)
    if plan.unpriced:
        console.print(
            f"left out, without a price: {', '.join(plan.unpriced)} ({plan.inquiry.market.purchase})"
        )
