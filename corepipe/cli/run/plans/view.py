"""The output of `corepipe plan`: the choice, its errors and commands, alternatives, and what fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from corepipe.cli.output.tables import Figures, between
from corepipe.errors import UserError
from corepipe.neuron.timing.uncertainty import Figure
from corepipe.planning.planner.commands import wrapped
from corepipe.planning.planner.confidence import METRICS
from corepipe.planning.planner.plan_report import PlanCommands, distances, million, percentile_note, reasons
from corepipe.planning.planner.planner import Plan
from corepipe.planning.planner.remedies import Remedy, roomier
from corepipe.planning.planner.search_result import PlanOption, SearchProgress


def note(progress: SearchProgress) -> str:
    """Returns the state of a search in a line."""
    best = progress.best
    found = f"best {best.price:.4g} $/h ({best.deployment})" if best else "none found yet"
    return f"{progress.tried} tried, {progress.left} of {progress.shapes} left, {found}"


def print_plan(console: Console, plan: Plan, remedy: Remedy | None, commands: PlanCommands | None) -> None:
    """Prints the whole plan; `commands`: those of the choice, if there is one."""
    if plan.search.cut_short:
        console.print(cut(plan), style="bold")
    if plan.undecided:
        console.print(undecided(plan), style="bold")
        console.print(_options(plan, plan.options, "deployments that meet the objectives (emulated)"))
    elif plan.best:
        for line in summary(plan, plan.best, commands):
            console.print(line, style="bold")
        console.print()
        for doubt in doubts(plan, plan.best):
            console.print(doubt)
        console.print(
            _options(plan, plan.front, "cheaper or faster: the choice between latency and cost (emulated)")
        )
        if plan.tied:
            console.print(_options(plan, plan.tied, "as good as the choice, within the validation error"))
    else:
        _print_unmet(console, plan, remedy)
    _print_failures(console, plan)
    if commands is not None and isinstance(commands.measure, str):
        console.print(f"--next-measurement: {commands.measure}")
    elif commands is not None and isinstance(commands.measure, tuple):
        _print_measurement(console, plan, commands.measure)
    if commands is not None and plan.best is not None:
        _print_commands(console, commands, plan.best.deployment.instances)
    found, market = plan.search, plan.inquiry.market
    console.print(
        f"{found.configurations} configurations were examined, {found.simulations} simulated; "
        f"prices: {market.purchase}, {market.region}",
        style="dim",
    )


def summary(plan: Plan, option: PlanOption, commands: PlanCommands | None) -> Iterator[str]:
    """The choice in three lines: what to rent for how much, how quick it is, and what runs it."""
    outcome, device = option.outcome, option.deployment.candidate.shape.device
    asked = plan.inquiry.demand.objectives
    yield (
        f"{option.deployment} at {option.price:.4g} $/h ({device.standing}), "
        f"{million(plan, option):.3g} $ for a million output tokens"
    )
    figures = (("TTFT", outcome.ttft, asked.ttft), ("TPOT", outcome.tpot, asked.tpot))
    told = ", ".join(f"{name} {_ms(found)} ms{_of(limit)}" for name, found, limit in figures)
    aimless = "; without an objective (--ttft, --tpot) it is the cheapest whose queue does not grow"
    yield f"{told} at p{asked.percentile:g}{aimless if asked.ttft is None and asked.tpot is None else ''}"
    if commands is not None and isinstance(commands.vllm, str):
        yield f"no software stack runs it: {commands.vllm} (--emit vllm-neuron chooses only what one runs)"
    elif commands is not None:
        runs = f"may run it, but {commands.doubt}" if commands.doubt else "runs it"
        yield f"vLLM on Neuron {runs}: the command is below, --emit vllm-neuron writes its manifests"


def _of(limit: float | None) -> str:
    return "" if limit is None else f" of {_ms(limit)}"


def cut(plan: Plan) -> str:
    """Says that the search was cut short, and what that means."""
    least = plan.search.least
    sure = f"; nothing below {least:.4g} $/h meets the objectives" if 0 < least < float("inf") else ""
    if plan.best is not None and plan.best.price <= least:
        sure = "; nothing cheaper meets the objectives, faster ones may"
    return f"The search was cut short ({plan.search.cut_short}): this is the best so far{sure}."


def undecided(plan: Plan) -> str:
    """Says that nothing is chosen, and why."""
    known = plan.certainty
    lows, highs = zip(*map(known.price, plan.options), strict=True)
    return (
        f"Nothing is chosen: {len(plan.options)} deployments meet the objectives, and at {known.level:.0%} "
        f"the intervals of their prices all overlap (each holds {max(lows):.4g} to {min(highs):.4g} $/h); "
        f"{_telling(plan)}"
    )


def _telling(plan: Plan) -> str:
    if plan.certainty.next_measurement(plan.options) is None:
        return "no single measurement would distinguish one from another"
    return "--next-measurement names a measurement that would distinguish them"


def sentence(plan: Plan, option: PlanOption) -> str:
    outcome, device = option.outcome, option.deployment.candidate.shape.device
    return (
        f"{option.deployment} at {option.price:.4g} $/h ({device.standing}): TTFT {_ms(outcome.ttft)} ms, "
        f"TPOT {_ms(outcome.tpot)} ms at p{plan.inquiry.demand.objectives.percentile:g}, "
        f"{million(plan, option):.3g} $ for a million output tokens"
    )


def doubts(plan: Plan, option: PlanOption) -> list[str]:
    """Says how near the objectives are, how large the errors are, and where the price is from."""
    shape, known = option.deployment.candidate.shape, plan.inquiry.validation
    sure = {figure: known.of(figure, shape) for figure in METRICS}
    parts = ", ".join(f"{figure} {confidence}" for figure, confidence in sure.items())
    bases = "; ".join(dict.fromkeys(c.basis for c in sure.values() if c.error is not None))
    return [
        *_nearness(plan, option),
        f"validation errors: {parts}; {percentile_note(plan)}" + (f" ({bases})" if bases else ""),
        f"source of the price: {plan.prices[shape.instance].source}",
        *([f"hypothetical: {shape.device.hypothetical}"] if shape.device.hypothetical else []),
        *_certainty(plan, option),
    ]


def _certainty(plan: Plan, option: PlanOption) -> Iterator[str]:
    """Yields the intervals of measurements, and which options they do not distinguish."""
    known, percentile = plan.certainty, plan.inquiry.demand.objectives.percentile
    ttft, tpot = (
        (low * 1e3, high * 1e3) for low, high in (known.latency(option, name) for name in ("ttft", "tpot"))
    )
    price = known.interval(option, Figure.THROUGHPUT)
    low, high = known.price(option)
    yield (
        f"intervals of measurements: TTFT {between(ttft)} ms, TPOT {between(tpot)} ms "
        f"at p{percentile:g}, {low:.4g} to {high:.4g} $/h for this rate ({price.basis})"
    )
    if otherwise := option.deployment.candidate.shape.profile.otherwise:
        yield (
            "which kernel or sampling its software uses is not documented: the figures are the worse of "
            f"{option.deployment.candidate.shape.profile.name} and {otherwise}; one measured prompt tells"
        )
    if sure := known.confidence(option):
        parts = ", ".join(f"{name.upper()} {share:.0%}" for name, share in sure.items())
        yield f"measurements that would meet the objective, of such figures: {parts}"
    if missed := known.may_miss(option):
        yield f"at the upper ends of the intervals it misses: {', '.join(name.upper() for name in missed)}"
    if plan.undecided or (len(plan.options) > 1 and known.undecided(plan.options)):
        yield f"the intervals of all {len(plan.options)} options overlap: which is cheapest is not certain"
    elif plan.alike:
        others = f"{len(plan.alike)} of {len(plan.options) - 1} other options"
        yield f"{others} may be as cheap: their intervals overlap"


def _nearness(plan: Plan, option: PlanOption) -> Iterator[str]:
    """Yields how far below each objective its prediction is, beside the error of the prediction."""
    for name, below, error in distances(plan, option):
        text = f"{name.upper()} is {below:.0%} below its objective"
        if error is None:
            yield f"{text}; the error of this prediction was not validated"
        elif below < error:
            yield (
                f"{text}, with a prediction error of {error:.0%}: the device may miss it "
                f"(--margin {error * 100:.0f} leaves room)"
            )
        else:
            yield f"{text}, with a prediction error of {error:.0%}"


def _ms(seconds: float) -> str:
    """Milliseconds; a dash where there is nothing to time, as between the tokens of an answer of one."""
    milliseconds = seconds * 1e3
    if not seconds:
        return "-"
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


def _options(plan: Plan, options: Sequence[PlanOption], title: str) -> Figures:
    table = Figures(
        *(">$/h", ">$/M tokens", ">TTFT ms", ">TPOT ms", ">e2e ms", "deployment"),
        title=title,
        title_justify="left",
        pad_edge=False,
    )
    for option in options:
        outcome = option.outcome
        latencies = (outcome.ttft, outcome.tpot, outcome.latency)
        numbers = (f"{option.price:.4g}", f"{million(plan, option):.3g}", *map(_ms, latencies))
        hypothetical = option.deployment.candidate.shape.device.hypothetical
        table.add_row(*numbers, f"{option.deployment}{' (hypothetical)' if hypothetical else ''}")
    return table


def _print_unmet(console: Console, plan: Plan, remedy: Remedy | None) -> None:
    if plan.search.cut_short:
        console.print("Nothing that was examined so far meets the objectives.", style="bold")
    else:
        console.print("Nothing meets the objectives.", style="bold")
    if plan.nearest is not None:
        console.print(f"the nearest is {plan.nearest.shape}: {plan.nearest.failure.text}")
    roomy = roomier(plan)
    if roomy is not None:
        console.print(f"the model would fit on {roomy}{_unpriced(plan, roomy.instance)}")
    if remedy is not None:
        asked = remedy.objectives
        flags = {"--ttft": asked.ttft, "--tpot": asked.tpot}
        changed = " ".join(f"{flag} {value * 1e3:g}ms" for flag, value in flags.items() if value)
        console.print(f"{changed} would be met by {sentence(plan, remedy.option)}")


def _unpriced(plan: Plan, instance: str) -> str:
    """Returns why an instance cannot be bought as was asked, or an empty text."""
    market = plan.inquiry.market
    try:
        market.prices.require(instance, market.purchase, market.region)
    except UserError as error:
        return f"; {error.message}"
    return ""


def _print_failures(console: Console, plan: Plan) -> None:
    failures = ((instance, why, str(count), nearest) for instance, why, count, nearest in reasons(plan))
    title = "what does not meet them"
    headings = ("instance", "fails by", ">of", "nearest")
    table = Figures(*headings, rows=failures, title=title, title_justify="left", pad_edge=False)
    if table.row_count:
        console.print(table)
    market = plan.inquiry.market
    if plan.unpriced:
        console.print(f"left out, as they have no price ({market.purchase}, {market.region}):")
    for name in plan.unpriced:
        console.print(f"  {name}: {market.prices.otherwise(name)}")


def _print_measurement(console: Console, plan: Plan, commands: Sequence[list[str]]) -> None:
    found = plan.certainty.next_measurement(plan.options)
    assert found is not None
    console.print(
        f"to distinguish {found.separates} of {found.rivals} others from it, measure one instance of "
        f"{found.option.deployment.candidate} at {found.price:.4g} $/h, and fit a profile to that:",
    )
    for command in commands:
        console.print(wrapped(command))


def _print_commands(console: Console, commands: PlanCommands, instances: int) -> None:
    if not isinstance(commands.vllm, str):
        console.print("to run it on the hardware, once for each replica (not tested on a device):")
        console.print(wrapped(commands.vllm))
        for note in commands.before:
            console.print(f"  {note}")
    each = "the instance" if instances == 1 else f"each of the {instances} instances"
    if commands.serve is None:
        console.print("corepipe serve cannot emulate this one: it has no flag for logical cores (LNC)")
    else:
        console.print(f"to serve it emulated, for {each}:")
        console.print(wrapped(commands.serve))
    console.print(f"to simulate {'it' if instances == 1 else 'one instance'} again:")
    console.print(wrapped(commands.simulate))
